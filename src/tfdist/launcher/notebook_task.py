"""Run one task of a cluster that calls a function: the one that a notebook, or Ray's driver, has sent."""

import os
import sys
from pathlib import Path
from typing import Any

from tfdist.cluster.config import ClusterConfig
from tfdist.launcher.supervisor.fork_server import fork_tasks

__all__ = ["EVERY_TASK", "main"]

EVERY_TASK = "every_task"


def main(call: str, result: str, who: str = "chief") -> None:
    """Call the function in one file, and write the result to the other: the chief's, or each task's own."""
    import cloudpickle

    function, args = cloudpickle.loads(Path(call).read_bytes())
    returned = function(*args)
    if who == EVERY_TASK or ClusterConfig.from_environment().is_chief:
        Path(result).write_bytes(cloudpickle.dumps(_without_model(returned)))


def _without_model(returned: Any) -> Any:
    """Return a result; remove a Keras History's model, which belongs to the task's strategy."""
    if hasattr(returned, "set_model"):
        returned.set_model(None)
    return returned


if __name__ == "__main__":
    # Only errors of TensorFlow's C++ belong into a cell's output.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    fork_tasks("tfdist.training.fit")
    main(*sys.argv[1:])
