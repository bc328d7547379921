"""Wait in a script until all processes that run it have reached the same line."""

from tfdist.coordination.stall_limit import Activity
from tfdist.coordination.stall_watch import doing
from tfdist.training.error_messages.lost_task_errors import public_call
from tfdist.training.workers.same_call import check_same_call, strategy_of_call


def barrier() -> None:
    """Wait until every mirrored worker has called this function.

    The call returns at once if only one process runs the script: the chief of parameter servers, or a process
    that trains alone.

    Raises:
        ConfigError: A worker is in another call, or this one is not connected to the others yet.
        TaskLost: A worker is gone.
    """
    strategy = strategy_of_call("barrier")
    with public_call("barrier", strategy), doing(Activity("")):
        check_same_call(strategy)  # the chief may be writing large files
