"""Define an execution of steps, which the coordinator sends to a worker, and again if that worker is lost.

The other worker reads its own part of the data. So what was taken by an execution is known for each time
that it was sent.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tfdist._utils.tf_private import has_result
from tfdist.coordination.end_stalled_workers import TimeAtWork
from tfdist.training.parameter_servers.applied_steps import AppliedSteps, Begun

# One tensor is sent with an execution: the steps, its number, how many steps are done, and its call.
ORDER_SPEC = tf.TensorSpec([4], tf.int64)


def opened_order(order: tf.Tensor) -> tuple[tf.Tensor, Begun]:
    """Return, in the graph of an execution, the number of steps to take, and what was begun of them."""
    wanted, number, done, call = tf.unstack(order)
    return tf.cast(wanted, tf.int32), Begun(number, tf.cast(done, tf.int32), call)


@dataclass
class Sending:
    """One time that an execution was sent to a worker.

    Attributes:
        time: The worker, and the time that it is at work on it.
        part: The part of the data that this worker reads.
        number: Its number, by which its steps are noted.
        done_before: How many of the execution's steps had been taken before, by workers that were lost.
        done_after: How many after this time; None if it has not ended yet.
    """

    time: TimeAtWork
    part: int
    number: int
    done_before: int
    done_after: int | None = None


@dataclass(eq=False)
class Execution:
    """An execution that the coordinator sends to a worker, and to another one if that worker is lost.

    Attributes:
        wanted: The most steps to take.
        applied: Where its steps are noted; None if they update nothing, and are taken again.
        closure: The coordinator's answer, when the execution was scheduled.
        sendings: The times that it was sent to a worker.
        call: The number of the epoch that it belongs to.
        unpacked: A function that returns its result as its graph has computed it.
    """

    wanted: int
    applied: AppliedSteps | None = None
    closure: Any = None
    sendings: list[Sending] = field(default_factory=list)
    call: int = 0
    unpacked: Callable[[Any], Any] = lambda result: result
    result: Any = None

    def fetch(self) -> Any:
        """Return its result; wait for it, or raise its error."""
        if self.result is None:
            self.result = self.unpacked(self.closure.fetch())
        return self.result

    @property
    def worker(self) -> int:
        """Return the worker that it was sent to last."""
        return self.sendings[-1].time.worker

    @property
    def at_work(self) -> TimeAtWork | None:
        """Return the worker that is at work on it, and its time; None if none is known to be."""
        last = self.sendings[-1] if self.sendings else None
        return None if last is None or self.is_over(last) else last.time

    def is_over(self, sending: Sending) -> bool:
        """Return whether a worker has answered, or is known to be lost."""
        is_last = sending is self.sendings[-1]
        return sending.done_after is not None or (is_last and has_result(self.closure))

    def done_after(self, sending: Sending) -> int:
        """Return how many steps had been taken when a worker had answered or was lost, which it is by now."""
        if sending.done_after is None:
            is_last = sending is self.sendings[-1]
            if is_last and has_result(self.closure):
                sending.done_after = int(self.fetch()[0])
            else:
                done = sending.done_before
                sending.done_after = 0 if self.applied is None else self.applied.give_up(sending.number, done)
            self._release(sending)
        return sending.done_after

    def forget(self, sending: Sending) -> None:
        """Note that nobody will ask how many steps were taken, if they are over."""
        if sending.done_after is None and self.is_over(sending):
            sending.done_after = sending.done_before
            self._release(sending)

    def _release(self, sending: Sending) -> None:
        if self.applied is not None:
            self.applied.release(sending.number)

    def send(self, time: TimeAtWork, part: int) -> Sending:
        """Note that it is sent to a worker, whose time begins."""
        done = self.done_after(self.sendings[-1]) if self.sendings else 0
        number = 0 if self.applied is None else self.applied.new_number()
        self.sendings.append(Sending(time, part, number, done))
        return self.sendings[-1]
