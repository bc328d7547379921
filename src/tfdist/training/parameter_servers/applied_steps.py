"""Note on a parameter server how many steps of each execution were applied.

If an asynchronous worker is lost, TensorFlow gives its execution to another worker, from the beginning. What
the lost worker had done would then count twice. So the parameter server notes the steps that were applied,
and the other worker continues after them.

What a lost worker has sent may still arrive: the kernel sends it again once a link is whole, and a worker
that was stopped continues. So the chief first writes on the server that it has given the execution up. When
all gradients are there, the server applies them only if it has not been told this.
"""

import contextlib
import logging
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from tfdist._utils.tf_private import own_executor

_ROWS = 4096  # more than there are workers, each of which has one execution at a time
_MORE_THAN_STEPS = 2**26  # of one execution; a larger power would leave less to the numbers of executions
# The server may be applying an update that had come before the execution was given up. Where the update notes
# the step, it notes first that it begins, and the chief waits only for such an update.
_SECONDS_TO_APPLY = 0.3
_MOST_SECONDS_TO_APPLY = 10.0
_SECONDS_BETWEEN_LOOKS = 0.02
_log = logging.getLogger("tfdist")


class Begun(NamedTuple):
    """The numbers that the graph of an execution gets with it.

    Attributes:
        number: The number of the execution.
        done: How many of its steps were applied before, by a worker that was lost.
        call: The number of the call of `fit`, `evaluate` or `predict`, or of the epoch.
    """

    number: Any
    done: Any
    call: Any = 0


class AppliedSteps:
    """The steps of executions that were applied.

    Attributes:
        are_noted_by_update: Whether the update of the weights notes a step, and not the loop over the steps.
    """

    def __init__(self, strategy: tf.distribute.Strategy, beside: Any, *, are_noted_by_update: bool) -> None:
        """Make room for the notes on the parameter server that holds a variable.

        If the update of the weights notes a step, this is the variable that it counts steps in.
        """
        self.are_noted_by_update = are_noted_by_update
        self._counter, self._has_lost = (beside if are_noted_by_update else None), False
        with strategy.scope(), strategy.extended.colocate_vars_with(beside):
            # A row has the number of an execution and its steps in one integer, which is written at once.
            self._rows = tf.Variable(tf.zeros([_ROWS], tf.int64), trainable=False, name="applied_steps")
            # What the row of an update that has begun will be, in the same places.
            self._begun = tf.Variable(tf.zeros([_ROWS], tf.int64), trainable=False, name="begun_steps")
            # The number of the latest execution that was given up, in the same places.
            self._given_up = tf.Variable(tf.zeros([_ROWS], tf.int64), trainable=False, name="given_up")
        self._free, self._uses = deque(range(_ROWS)), [0] * _ROWS
        self._step: _TracedStep | None = None

    def new_number(self) -> int:
        """Return a number for an execution that is sent to a worker, also if another one had it before.

        Its remainder is a row that no other execution has until `release`. Numbers of a row increase.
        """
        row = self._free.popleft()
        self._uses[row] += 1
        return self._uses[row] * _ROWS + row

    def release(self, number: int) -> None:
        """Free the row of an execution that was answered, given up or forgotten."""
        self._free.append(number % _ROWS)

    def note(self, number: tf.Tensor, steps: tf.Tensor) -> None:
        """Note, in a graph, that so many steps of an execution were applied."""
        self._write(self._rows, self._traced(number, steps))

    @contextlib.contextmanager
    def step(self, number: tf.Tensor, step: tf.Tensor) -> Iterator[None]:
        """Trace a step of an execution; steps are counted from 1.

        If no update notes the step, it does not begin where the execution was given up.
        """
        self._step = self._traced(number, step)  # now: the server needs nothing of the worker then
        try:
            with tf.control_dependencies([] if self.are_noted_by_update else self.refuse_if_given_up()):
                yield
        finally:
            self._step = None

    def note_step(self) -> None:
        """Note, in the graph of a step, that this step was applied."""
        if self._step is not None:
            self._write(self._rows, self._step)

    def refuse_if_given_up(self) -> list[tf.Operation]:
        """Return the operations, in the graph of a step, that fail if its execution was given up.

        An update notes that it begins before it looks. So either it sees that the chief has given the
        execution up, or the chief sees that it has begun.
        """
        if self._step is None:
            return []
        begun = [self._write(self._begun, self._step)] if self.are_noted_by_update else []
        with tf.device(self._rows.device), tf.control_dependencies(begun):
            given_up = tf.raw_ops.ResourceGather(
                resource=self._given_up.handle, indices=self._step.index, dtype=tf.int64
            )
            # Those that had the row before were answered or given up.
            is_wanted = tf.greater(self._step.number, given_up)
            text = tf.constant("the chief has given this execution to another worker")
            return [tf.raw_ops.Assert(condition=is_wanted, data=[text])]

    def _traced(self, number: tf.Tensor, steps: tf.Tensor) -> "_TracedStep":
        with tf.device(self._rows.device):
            row = number * _MORE_THAN_STEPS + tf.cast(steps, tf.int64)
            return _TracedStep(tf.identity(number), number % _ROWS, row)

    def _write(self, rows: tf.Variable, step: "_TracedStep") -> Any:
        # The maximum: a worker that was lost long ago may write to the row of a later execution.
        return tf.raw_ops.ResourceScatterMax(
            resource=rows.handle, indices=step.index, updates=step.row, name="note_applied_steps"
        )

    def counted(self) -> int:
        """Return how many steps the optimizer has counted, if the update of the weights notes a step."""
        return 0 if self._counter is None else int(self._counter.numpy())

    def correct(self, count: int) -> None:
        """Make the optimizer's count right, while no execution is under way, if a worker was lost.

        The server may have counted a step and not noted it, when the worker was lost in between.
        """
        if self._has_lost and self._counter is not None:
            self._counter.assign(count)
        self._has_lost = False

    def give_up(self, number: int, before: int = 0) -> int:
        """Refuse all further steps of a lost worker's execution; return how many were applied.

        Args:
            number: The number of the execution.
            before: How many were applied before it was sent to this worker.
        """
        self._has_lost = True
        index = number % _ROWS
        # The caller may be about to use another task, which fails for reasons of its own.
        with own_executor(), tf.device(None):
            self._given_up.scatter_update(tf.IndexedSlices([tf.constant(number, tf.int64)], [index]))
            noted, steps = divmod(self._row_at_rest(index, number), _MORE_THAN_STEPS)
        if noted != number:
            return before
        _log.info(
            "a lost worker has applied %d steps of an execution, and another continues after them", steps
        )
        return steps

    def _row_at_rest(self, index: int, number: int) -> int:
        """Return the row of an execution that was given up, once no update of it is under way."""
        if not self.are_noted_by_update:
            time.sleep(_SECONDS_TO_APPLY)
            return _read(self._rows, index)
        end = time.monotonic() + _MOST_SECONDS_TO_APPLY
        begun = _read(self._begun, index)
        row = _read(self._rows, index)
        while begun // _MORE_THAN_STEPS == number and begun != row and time.monotonic() < end:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
            row = _read(self._rows, index)
        return row


def _read(rows: tf.Variable, index: int) -> int:
    return int(rows.sparse_read([index]).numpy()[0])


class _TracedStep(NamedTuple):
    """A step while it is traced: the tensors on the server that say which one it is.

    Attributes:
        number: The number of its execution.
        index: The place of the execution's row.
        row: What the row says once the step is applied.
    """

    number: tf.Tensor
    index: tf.Tensor
    row: tf.Tensor
