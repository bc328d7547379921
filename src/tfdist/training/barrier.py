"""Wait in a script until all processes that run it have reached the same line."""

from tfdist.strategies.current import current_strategy
from tfdist.training.leave_loop_together import wait_for_all
from tfdist.training.task_errors import naming_lost_tasks

__all__ = ["barrier"]


def barrier() -> None:
    """Wait until every mirrored worker has called this function.

    The call returns at once if only one process runs the script: the chief of parameter servers, or a process
    that trains alone.

    Raises:
        TaskLost: A worker is gone.
    """
    strategy = current_strategy()
    if strategy is not None:
        with naming_lost_tasks("barrier", strategy):
            wait_for_all(strategy)
