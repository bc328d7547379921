"""Start a script of your own as a cluster on this machine, each process with its own TF_CONFIG.

    python -m tfdist.launch --workers 2 --ps 1 -- python my_script.py --my_flag

A chief is added where there is a ps. The script is the same on all tasks; see examples/keras_script.py. With
--restarts, it finds by itself where to go on.
"""

import time
from collections.abc import Sequence
from pathlib import Path

from tfdist.cluster import ClusterConfig
from tfdist.errors import ConfigError
from tfdist.launcher import launch

__all__ = ["main"]


def main(
    command: Sequence[str],
    workers: int = 2,
    ps: int = 0,
    run_dir: str | None = None,
    restarts: int = 0,
    alone: Sequence[str] = (),
) -> None:
    """Run a command as every task of a local cluster."""
    if not command:
        raise ConfigError("command line", "names no command", remedy="Write it last: -- python my_script.py")
    folder = Path(run_dir or time.strftime("runs/launch-%Y%m%d-%H%M%S"))
    cluster = ClusterConfig.local(workers=workers, ps=ps)
    launch(cluster, command, run_dir=folder, restarts=restarts, alone=alone)


if __name__ == "__main__":
    from absl import flags

    from tfdist._app import run

    flags.DEFINE_integer("workers", 2, "How many workers.")
    flags.DEFINE_integer("ps", 0, "How many parameter servers.")
    flags.DEFINE_string("run_dir", None, "Where the logs go. Without, a new folder in runs/.")
    flags.DEFINE_integer(
        "restarts", 0, "How often, in all, tasks that are lost are started again.", lower_bound=0
    )
    flags.DEFINE_multi_string(
        "alone",
        [],
        "A type of tasks that are started again alone, such as worker beside a ps where the updates are"
        " asynchronous; can be repeated.",
    )
    run(main, takes_command=True)
