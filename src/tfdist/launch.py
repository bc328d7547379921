"""Start a script of your own as a cluster on this machine, each process with its own TF_CONFIG.

    python -m tfdist.launch --workers 2 --ps 1 -- python my_script.py --my_flag

    python -m tfdist.launch --job reader=1 --job trainer=3 -- python my_script.py

A chief is added where there is a ps or a job of another name. The script is the same on all tasks; see
examples/keras_script.py and examples/ensemble.py. With --restarts, it finds by itself where to go on.
"""

import re
import time
from collections.abc import Sequence
from pathlib import Path

from tfdist.cluster import ClusterConfig
from tfdist.errors import ConfigError, shown
from tfdist.launcher import launch

__all__ = ["main"]


def main(
    command: Sequence[str],
    workers: int | None = None,
    ps: int = 0,
    job: Sequence[str] = (),
    run_dir: str | None = None,
    restarts: int = 0,
    alone: Sequence[str] = (),
) -> None:
    """Run a command as every task of a local cluster."""
    if not command:
        raise ConfigError("command line", "names no command", remedy="Write it last: -- python my_script.py")
    folder = Path(run_dir or time.strftime("runs/launch-%Y%m%d-%H%M%S"))
    jobs = dict(map(_counted, job))
    workers = (0 if jobs else 2) if workers is None else workers
    cluster = ClusterConfig.local(workers=workers, ps=ps, chief=1 if jobs else None, jobs=jobs)
    launch(cluster, command, run_dir=folder, restarts=restarts, alone=alone)


def _counted(text: str) -> tuple[str, int]:
    name, _, count = text.partition("=")
    if not re.fullmatch(r"[0-9]{1,4}", count):
        raise ConfigError("--job", expected="a name and how many, such as trainer=3", received=shown(text))
    return name, int(count)


if __name__ == "__main__":
    from absl import flags

    from tfdist._app import run

    flags.DEFINE_integer("workers", None, "How many workers; 2 where no --job is given.")
    flags.DEFINE_integer("ps", 0, "How many parameter servers.")
    flags.DEFINE_multi_string("job", [], "A job of any name and how many tasks, trainer=3; can be repeated.")
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
