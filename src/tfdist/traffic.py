"""Measure what the tasks of a cluster send each other, at their sockets.

Each task counts for itself. A server tells the chief when it is asked, by an operation on that server: so it
takes neither a disk nor a port, and works wherever training does.
"""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context, executor

from tfdist.addresses import split_address
from tfdist.calls import answer, ask, resolver_of
from tfdist.cluster import ClusterConfig, Task
from tfdist.connections import Connections

__all__ = ["Traffic", "telling_traffic"]

_NAME = "bytes_sent"
_NOT_TOLD = -1  # by the kernel
_SECONDS_TO_TELL = 5.0
_log = logging.getLogger("tfdist")


class _Count(NamedTuple):
    """Hold what a task has sent since its process began."""

    process: int
    sent: int


class Traffic:
    """Measure what tasks send, from the beginning of a block to its end.

        with tfdist.Traffic(strategy) as traffic:
            tfdist.fit(model, make_dataset, strategy=strategy, steps_per_epoch=100)
        traffic.bytes_sent  # {"chief:0": 91234, "worker:0": 408123456, "ps:0": 408345678}

    The chief of ps tasks has their figures and those of all workers, which serve it; a mirrored worker has
    its own. Counted are the TCP connections with the cluster's machines, by whoever sends, and what goes to
    tasks of the same machine in memory in their place.

    Attributes:
        bytes_sent: By task, once the block has ended. A task is left out that does not answer, that was
            started anew within the block, or whose kernel does not tell (all but Linux).
    """

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        """Say whose traffic it is; a process alone has none."""
        resolver = resolver_of(strategy)
        spec = {} if resolver is None else resolver.cluster_spec().as_dict()
        self._task = None if resolver is None else Task(resolver.task_type, resolver.task_id)
        self._connections = _connections(spec, self._task) if self._task else None
        mirrored = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
        self._servers = [
            Task(job, index)
            for job, addresses in spec.items()
            for index in range(len(addresses))
            if not mirrored and Task(job, index) != self._task
        ]
        self.bytes_sent: dict[str, int] = {}

    def __enter__(self) -> "Traffic":
        if self._connections is not None:
            self._connections.__enter__()
        self._before = self._counts()
        return self

    def __exit__(self, *error: Any) -> None:
        # Where the block has failed, so may have those who would be asked.
        after = {} if error[0] else self._counts()
        if self._connections is not None:
            self._connections.__exit__(*error)
        self.bytes_sent = {
            str(task): count.sent - self._before[task].sent
            for task, count in after.items()
            if task in self._before and self._before[task].process == count.process
        }

    def _counts(self) -> dict[Task, _Count]:
        found: dict[Task, _Count] = {}
        # A thread for each: an operation on a server that is silent does not return.
        threads = [threading.Thread(target=_ask, args=(task, found), daemon=True) for task in self._servers]
        for thread in threads:
            thread.start()
        until = time.monotonic() + _SECONDS_TO_TELL
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        own = None if self._connections is None else self._connections.bytes_sent()
        if self._task is not None and own is not None:
            found[self._task] = _Count(os.getpid(), own)
        return dict(found)


@contextlib.contextmanager
def telling_traffic(cluster: ClusterConfig) -> Iterator[None]:
    """Tell the chief what this server has sent, whenever it asks within the block."""
    process = int.from_bytes(os.urandom(7), "big")
    with _connections(cluster.tf_config()["cluster"], cluster.task or cluster.lead) as connections:

        def told() -> Any:
            sent = connections.bytes_sent()
            return np.array([process, _NOT_TOLD if sent is None else sent])

        answer(_NAME, told)
        yield


def _connections(spec: Mapping[str, Sequence[str]], task: Task) -> Connections:
    hosts = [split_address(address)[0] for addresses in spec.values() for address in addresses]
    return Connections(split_address(spec[task.type][task.index])[1], hosts)


def _ask(task: Task, found: dict[Task, _Count]) -> None:
    # An executor of its own, or the failure of one server would be taken for that of the next.
    with context.executor_scope(executor.new_executor(enable_async=False)):
        try:
            process, sent = map(int, ask(task, _NAME, tf.int64))
        except tf.errors.OpError as error:
            _log.debug("%s cannot be asked: %s", task, error)
            return
    if sent != _NOT_TOLD:
        found[task] = _Count(process, sent)
