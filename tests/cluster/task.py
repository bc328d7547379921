"""Be one task of a test's cluster: the same script for all of them."""

import faulthandler
import json
import sys
from pathlib import Path

faulthandler.enable()  # SIGABRT then shows the stack of every thread


def main(order: dict, result: Path) -> None:
    from tfdist.cluster import ClusterConfig
    from tfdist.server import serve
    from tfdist.strategy import make_strategy

    cluster = ClusterConfig.from_tf_config()
    if cluster.size("ps") and cluster.task and cluster.task.type in ("ps", "worker"):
        serve(cluster, **order.get("serve", {}))
        return
    strategy = make_strategy(cluster, order["strategy"], **order["options"])
    import cases

    found = {name: getattr(cases, name)(strategy, Path(order["folder"])) for name in order["cases"]}
    result.write_text(json.dumps(found))


if __name__ == "__main__":
    import os

    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    from tfdist.errors import TfdistError

    try:
        main(json.loads(sys.argv[1]), Path(sys.argv[2]))
    except TfdistError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        sys.exit(error.exit_code)
