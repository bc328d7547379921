"""Be one task of a test's cluster: the same script for all of them."""

import contextlib
import faulthandler
import importlib
import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

faulthandler.enable()  # a crash shows the stack of every thread
faulthandler.register(signal.SIGUSR1)  # and so does a test that has waited too long


def main(order: dict, result: Path) -> None:
    from tfdist.cluster import ClusterConfig
    from tfdist.remote import connect
    from tfdist.server import serve
    from tfdist.strategy import make_strategy

    cluster = ClusterConfig.from_tf_config()
    is_remote = order.get("strategy") == "connect"
    if cluster.serves or (is_remote and not cluster.is_chief):
        serve(cluster, **order.get("serve", {}))
        return
    found = {}
    with contextlib.ExitStack() as stack:
        if is_remote:
            made = stack.enter_context(connect(cluster, **order["options"]))
        else:
            made = make_strategy(cluster, order["strategy"], **order["options"])
        for name in order["cases"]:
            found[name] = _case(name)(made, Path(order["folder"]))
            result.write_text(json.dumps(found))  # after each, for the next may be one that fails


def _case(name: str) -> Callable[..., Any]:
    """Find `function`, of cases.py, or `module.function`."""
    module, _, function = name.rpartition(".")
    return getattr(importlib.import_module(module or "cases"), function)


if __name__ == "__main__":
    import os

    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    from tfdist.errors import TfdistError

    try:
        main(json.loads(sys.argv[1]), Path(sys.argv[2]))
    except TfdistError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        sys.exit(error.exit_code)
