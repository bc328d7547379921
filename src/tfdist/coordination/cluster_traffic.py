"""Measure at their sockets what the tasks of a cluster send to each other.

Each task counts its own bytes. The chief asks a server for its count with an operation on that server. This
takes neither a disk nor a port, and works wherever training works.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfdist._utils.strategy_kinds import has_mirrored_workers
from tfdist.cluster.addresses_and_free_ports import split_address
from tfdist.cluster.config import ClusterConfig, Task
from tfdist.coordination.bytes_sent import SentBytesCounter
from tfdist.coordination.calls_between_tasks import addresses_of, call, call_each, register, resolver_of

_NAME = "bytes_sent"
_UNKNOWN = -1  # the kernel does not report it
_COUNT_TIMEOUT = 5.0


class _Count(NamedTuple):
    """The bytes that a task has sent since its process began."""

    process: int
    sent: int


class Traffic:
    """Measure what tasks send, from the start of a block to its end.

        with tfdist.Traffic(strategy) as traffic:
            tfdist.fit(model, make_dataset, strategy=strategy, steps_per_epoch=100)
        traffic.bytes_sent  # {"chief:0": 91234, "worker:0": 408123456, "ps:0": 408345678}

    The chief of a cluster with ps tasks has the counts of all ps tasks and workers; a mirrored worker has
    only its own. The counts include the TCP connections to the cluster's machines, whoever sends on them,
    and the bytes that go to tasks of the same machine in shared memory instead.

    Attributes:
        bytes_sent: By task, set at the end of the block. A task is missing if it does not answer, if it was
            restarted within the block, or if its kernel does not report the count (all but Linux).
    """

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        """Store the tasks to measure: those of the strategy's cluster, none for a process alone."""
        resolver = resolver_of(strategy)
        addresses = addresses_of(strategy)
        self._task = None if resolver is None else Task(resolver.task_type, resolver.task_id)
        self._connections = _connections(addresses, self._task) if self._task else None
        mirrored = has_mirrored_workers(strategy)
        self._servers = [] if mirrored else [task for task in addresses if task != self._task]
        self.bytes_sent: dict[str, int] = {}

    def __enter__(self) -> "Traffic":
        if self._connections is not None:
            self._connections.__enter__()
        self._before = self._counts()
        return self

    def __exit__(self, *error: Any) -> None:
        # If the block has failed, the other tasks may have failed too.
        after = {} if error[0] else self._counts()
        if self._connections is not None:
            self._connections.__exit__(*error)
        self.bytes_sent = {
            str(task): count.sent - self._before[task].sent
            for task, count in after.items()
            if task in self._before and self._before[task].process == count.process
        }

    def _counts(self) -> dict[Task, _Count]:
        def fetch_count(task: Task) -> _Count:
            return _Count(*map(int, call(task, _NAME, tf.int64)))

        answered = call_each(fetch_count, self._servers, _COUNT_TIMEOUT)
        counts = {task: count for task, count in answered.items() if count.sent != _UNKNOWN}
        own = None if self._connections is None else self._connections.bytes_sent()
        if self._task is not None and own is not None:
            counts[self._task] = _Count(os.getpid(), own)
        return counts


@contextlib.contextmanager
def reporting_traffic(cluster: ClusterConfig) -> Iterator[None]:
    """Report to the chief what this server has sent, whenever the chief asks within the block."""
    process = int.from_bytes(os.urandom(7), "big")
    addresses = {task: cluster.address(task) for task in cluster.training().tasks()}
    with _connections(addresses, cluster.task or cluster.lead) as connections:

        def report() -> Any:
            sent = connections.bytes_sent()
            return np.array([process, _UNKNOWN if sent is None else sent])

        register(_NAME, report)
        yield


def _connections(addresses: Mapping[Task, str], task: Task) -> SentBytesCounter:
    hosts = [split_address(address)[0] for address in addresses.values()]
    return SentBytesCounter(split_address(addresses[task])[1], hosts)
