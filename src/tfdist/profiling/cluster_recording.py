"""Record all tasks of a cluster at once, and bring what they recorded to the chief.

Tasks that serve the chief are called by it. Mirrored workers all run the same loop, so each starts its own
profiler; the last exchange, before it stops, gathers the recordings.
"""

import logging
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist._utils.profiler_span import EXCHANGE, span
from tfdist._utils.strategy_kinds import has_mirrored_workers
from tfdist.cluster.config import ClusterConfig, Task
from tfdist.coordination.calls_between_tasks import addresses_of, call, call_each, register, resolver_of
from tfdist.errors import TfdistError
from tfdist.profiling.clock_alignment import Before
from tfdist.profiling.tensorflow_profiler import Recorded, Recorder, pack, unpack

_BEGIN, _END, _CLOCK = "profile.begin", "profile.end", "profile.clock"
_SECONDS_TO_ANSWER = 60.0
_log = logging.getLogger("tfdist")
_PROBES = 5  # the quickest of so many calls or exchanges tells most about the clocks


def offer_to_record(cluster: ClusterConfig) -> None:
    """Register the recording of this task, which the chief may then begin and end."""
    recorder = Recorder(str(cluster.task))

    def begin() -> Any:
        try:
            recorder.begin()
        except TfdistError as error:
            return np.array(str(error).encode())
        return np.array(b"")

    register(_BEGIN, begin)
    register(_END, lambda: np.frombuffer(pack(recorder.end()), np.uint8))
    register(_CLOCK, lambda: np.array(time.time_ns()))


class ClusterRecording:
    """The recording of all tasks of a strategy's cluster, which each task that trains begins and ends.

    Attributes:
        known: After the end, what is known of the order of times in the tasks.
    """

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self._is_mirrored = has_mirrored_workers(strategy)
        self._strategy = strategy
        resolver = resolver_of(strategy)
        own = Task("worker", 0) if resolver is None else Task(resolver.task_type, resolver.task_id)
        self._servers = [] if self._is_mirrored else [task for task in addresses_of(strategy) if task != own]
        self._own = str(own)
        self._recorder = Recorder(self._own)
        self.known: list[Before] = []

    def begin(self) -> None:
        """Start the profilers; warn of a task where that fails, and which the timeline will lack."""
        problems = call_each(lambda task: call(task, _BEGIN, tf.string), self._servers, _SECONDS_TO_ANSWER)
        for task, problem in problems.items():
            if problem:
                _log.warning("the timeline will lack %s: %s", task, problem.decode())
        try:
            self._recorder.begin()
        except TfdistError as error:  # the other tasks continue, and wait for this one
            _log.warning("the timeline will lack %s: %s", self._own, error)
        self._meet("begin")

    def end(self) -> list[Recorded]:
        """Stop the profilers, and return what they have recorded; of mirrored workers, all get all of it."""
        self._meet("end")
        call_each(self._compare_clock, self._servers, _SECONDS_TO_ANSWER)
        own = self._recorder.end()
        if self._is_mirrored:
            return self._gathered(own)
        return [own, *_fetched(self._servers)]

    def _meet(self, when: str) -> None:
        """Exchange something small with the other mirrored workers, which tells how their clocks differ."""
        if not self._is_mirrored:
            return
        meet = tf.function(lambda: self._strategy.run(_meet), autograph=False)
        meet()  # the first call traces
        for number in range(_PROBES):
            with span(EXCHANGE, round=f"{when} {number}"):
                meet()

    def _compare_clock(self, task: Task) -> None:
        for _ in range(_PROBES):
            before = time.time_ns()
            there = int(call(task, _CLOCK, tf.int64))
            self.known.append(Before(self._own, before, str(task), there))
            self.known.append(Before(str(task), there, self._own, time.time_ns()))

    def _gathered(self, own: Recorded) -> list[Recorded]:
        data = _as_numbers(pack(own))
        gather = tf.function(lambda: self._strategy.run(_gather, args=(tf.constant(data),)), autograph=False)
        gathered = self._strategy.experimental_local_results(gather())[0].numpy()
        found = {recorded.task: recorded for recorded in map(unpack, _parts(gathered))}
        return list(found.values())  # each replica of a worker sends the worker's


def _fetched(servers: Sequence[Task]) -> list[Recorded]:
    packed = call_each(lambda task: call(task, _END, tf.uint8).tobytes(), servers, _SECONDS_TO_ANSWER)
    return [unpack(data) for data in packed.values()]


def _meet() -> Any:
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.constant(1.0))


def _gather(numbers: tf.Tensor) -> Any:
    return tf.distribute.get_replica_context().all_gather(tf.identity(numbers), axis=0)


def _as_numbers(data: bytes) -> Any:
    """Return bytes as numbers that every device can exchange, behind their count."""
    padded = data + bytes(-len(data) % 4)
    return np.concatenate([np.array([len(data)], np.int32), np.frombuffer(padded, np.int32)])


def _parts(numbers: Any) -> list[bytes]:
    """Return the bytes that `_as_numbers` has turned into each part of an array."""
    parts = []
    while len(numbers):
        size = int(numbers[0])
        words = 1 + -(-size // 4)
        parts.append(numbers[1:words].tobytes()[:size])
        numbers = numbers[words:]
    return parts
