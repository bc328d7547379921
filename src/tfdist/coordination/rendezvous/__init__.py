"""Gather the tasks of a cluster that train in step, before TensorFlow connects them.

TensorFlow's own start waits for a missing task and reports nothing. So the lead (the chief, or worker 0)
first calls each other task at the address that the cluster names. When all of them have answered at the
same time, the lead tells them who takes part. Then the tasks close their ports, and TensorFlow's servers
open them.

Lead and member each send one line of JSON in turn, in a fixed form and of limited length. The fingerprint
of a cluster separates two clusters that reach each other by mistake; it is no secret (see
docs/security.md).
"""

import hashlib
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from tfdist.cluster.config import ClusterConfig, Task
from tfdist.coordination.health import connected
from tfdist.coordination.rendezvous.answer_lead import Member
from tfdist.coordination.rendezvous.call_members import Lead
from tfdist.coordination.rendezvous.messages import Call, Refused, exchange
from tfdist.coordination.waiting import Awaiting

__all__ = ["find_waiting", "fingerprint", "hold_rendezvous"]

_MAX_THREADS = 16


def hold_rendezvous(
    cluster: ClusterConfig, mark: str, *, timeout: float, least: int | None = None, wait: float = 0.0
) -> tuple[Task, ...]:
    """Wait until the tasks of a training cluster are present; return them.

    Args:
        cluster: The cluster, and this process's task in it.
        mark: What only tasks of this cluster send: see `fingerprint`.
        timeout: Seconds after which a TaskLost error names the missing tasks.
        least: How many workers are enough once `wait` is over; None for all tasks.
        wait: Seconds that the lead waits for all tasks.
    """
    training = cluster.training()
    awaiting = Awaiting("make_strategy", training, timeout)
    if training.task == training.lead:
        return Lead(training, mark, awaiting, least, wait).call()
    return Member(training, mark, awaiting).answer()


def find_waiting(cluster: ClusterConfig, tasks: Sequence[Task], mark: str) -> tuple[Task, ...]:
    """Return those of these tasks that wait for a rendezvous."""

    def is_waiting(task: Task) -> bool:
        try:
            with connected(cluster.address(task)) as connection:
                exchange(connection, Call(mark, str(task), {}, []))
        except (Refused, OSError):
            return False
        return True

    with ThreadPoolExecutor(_MAX_THREADS) as pool:
        are_waiting = pool.map(is_waiting, tasks)
        return tuple(task for task, is_there in zip(tasks, are_waiting, strict=True) if is_there)


def fingerprint(cluster: ClusterConfig, *settings: object) -> str:
    """Return a hash of a cluster and of the settings that its tasks must share."""
    protocol_version = 1
    content = [protocol_version, cluster.training().tf_config().get("cluster"), settings]
    return hashlib.sha256(json.dumps(content, default=str).encode()).hexdigest()[:16]
