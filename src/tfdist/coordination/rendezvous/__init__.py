"""Gather the tasks of a cluster that train in step, before TensorFlow connects them.

TensorFlow's own start waits for a missing task and reports nothing. So the lead (the chief, or worker 0)
first calls each other task at the address that the cluster names. When all of them have answered at the
same time, the lead tells them who takes part. Then the tasks close their ports, and TensorFlow's servers
open them.

Lead and member each send one line of JSON in turn, in a fixed form and of limited length. Hashes of the
cluster and of each setting that its tasks must share separate two clusters that reach each other by mistake,
and name a setting that differs; they are no secret (see docs/security.md).
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from tfdist.cluster.config import ClusterConfig, Task
from tfdist.coordination.grpc_health_probe import connected
from tfdist.coordination.rendezvous.answer_lead import Member
from tfdist.coordination.rendezvous.call_members import Lead
from tfdist.coordination.rendezvous.messages import CLUSTER, Call, Marks, Refused, exchange
from tfdist.coordination.wait_for_tasks import Awaiting

__all__ = ["find_waiting", "fingerprint", "hold_rendezvous", "marks_of"]

_MAX_THREADS = 16


def hold_rendezvous(
    cluster: ClusterConfig, marks: Marks, *, timeout: float, least: int | None = None, wait: float = 0.0
) -> tuple[Task, ...]:
    """Wait until the tasks of a training cluster are present; return them.

    Args:
        cluster: The cluster, and this process's task in it.
        marks: What only tasks of this cluster send: see `marks_of`.
        timeout: Seconds after which a TaskLost error names the missing tasks.
        least: How many workers are enough once `wait` is over; None for all tasks.
        wait: Seconds that the lead waits for all tasks.
    """
    training = cluster.training()
    awaiting = Awaiting("make_strategy", training, timeout)
    if training.task == training.lead:
        return Lead(training, marks, awaiting, least, wait).call()
    return Member(training, marks, awaiting).answer()


def find_waiting(cluster: ClusterConfig, tasks: Sequence[Task], marks: Marks) -> tuple[Task, ...]:
    """Return those of these tasks that wait for a rendezvous."""

    def is_waiting(task: Task) -> bool:
        try:
            with connected(cluster.address(task)) as connection:
                exchange(connection, Call(marks, str(task), {}, []))
        except (Refused, OSError):
            return False
        return True

    with ThreadPoolExecutor(_MAX_THREADS) as pool:
        are_waiting = pool.map(is_waiting, tasks)
        return tuple(task for task, is_there in zip(tasks, are_waiting, strict=True) if is_there)


def marks_of(cluster: ClusterConfig, settings: Mapping[str, object]) -> Marks:
    """Return a hash of a cluster, and one of each setting that its tasks must share, by name."""
    return {CLUSTER: fingerprint(cluster)} | {name: _hash(value) for name, value in settings.items()}


def fingerprint(cluster: ClusterConfig) -> str:
    """Return a hash of a cluster."""
    protocol_version = 1
    return _hash([protocol_version, cluster.training().tf_config().get("cluster")])


def _hash(content: object) -> str:
    return hashlib.sha256(json.dumps(content, default=str).encode()).hexdigest()[:16]
