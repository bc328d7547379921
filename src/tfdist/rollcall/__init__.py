"""Let the tasks of a cluster that train in step meet before TensorFlow connects them.

TensorFlow's own start waits without a word for a task that does not come. So the lead (the chief, or worker
0) calls each of the others first, at the address that the cluster names, and they answer there. When all have
answered at the same time the lead says who takes part; the ports are given back, and TensorFlow's servers
take them.

Both sides speak one line of JSON in turn, of a fixed form and a bounded length. A cluster's fingerprint keeps
two clusters apart that find each other by mistake; it keeps no secret (see docs/security.md).
"""

import hashlib
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from tfdist.awaiting import Awaiting
from tfdist.cluster import ClusterConfig, Task
from tfdist.probing import connected
from tfdist.rollcall.lead import Lead
from tfdist.rollcall.member import Member
from tfdist.rollcall.speech import Call, Refused, exchange

__all__ = ["find_waiting", "fingerprint", "hold_roll_call"]

_MOST_AT_ONCE = 16


def hold_roll_call(
    cluster: ClusterConfig, mark: str, *, timeout: float, least: int | None = None, wait: float = 0.0
) -> tuple[Task, ...]:
    """Wait until the tasks of a training cluster are there; say which they are.

    Args:
        cluster: The cluster, and this process's task in it.
        mark: What only tasks of this cluster say: see `fingerprint`.
        timeout: Seconds until somebody who is missing is named and TaskLost raised.
        least: How many workers are enough when `wait` is over; all tasks where None.
        wait: Seconds that the lead waits for all of them.
    """
    training = cluster.training()
    awaiting = Awaiting("make_strategy", training, timeout)
    if training.task == training.lead:
        return Lead(training, mark, awaiting, least, wait).call()
    return Member(training, mark, awaiting).answer()


def find_waiting(cluster: ClusterConfig, tasks: Sequence[Task], mark: str) -> tuple[Task, ...]:
    """Say which of these tasks are waiting for a roll-call."""

    def is_waiting(task: Task) -> bool:
        try:
            with connected(cluster.address(task)) as line:
                exchange(line, Call(mark, str(task), {}, []))
        except (Refused, OSError):
            return False
        return True

    with ThreadPoolExecutor(_MOST_AT_ONCE) as pool:
        found = pool.map(is_waiting, tasks)
        return tuple(task for task, is_there in zip(tasks, found, strict=True) if is_there)


def fingerprint(cluster: ClusterConfig, *settings: object) -> str:
    """Give what tells a cluster, and the settings that its tasks must share, from another one."""
    known = [
        1,
        cluster.training().tf_config().get("cluster"),
        settings,
    ]  # the first is the protocol's version
    return hashlib.sha256(json.dumps(known, default=str).encode()).hexdigest()[:16]
