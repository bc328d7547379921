"""Note on a parameter server how many steps of each execution were applied.

If an asynchronous worker is lost, TensorFlow gives its execution to another worker, from the beginning. What
the lost worker had done would then count twice. So the parameter server notes the steps that were applied,
and the other worker continues after them.
"""

import contextlib
import itertools
import logging
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from tfdist._utils.tf_private import own_executor

# Executions that are under way at the same time have rows of their own: there are a few for each worker.
_ROWS = 4096
_MORE_THAN_STEPS = 2**32
# The server may have the gradients of a worker that was lost just now, and still apply them.
_SECONDS_TO_APPLY = 0.3
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
        self._numbers = itertools.count(1)
        self._step: tuple[tf.Tensor, tf.Tensor] | None = None  # while it is traced

    def new_number(self) -> int:
        """Return the number of a new execution."""
        return next(self._numbers)

    def note(self, number: tf.Tensor, steps: tf.Tensor) -> None:
        """Note, in a graph, that so many steps of an execution were applied."""
        self._note(*self._row(number, steps))

    @contextlib.contextmanager
    def step(self, number: tf.Tensor, step: tf.Tensor) -> Iterator[None]:
        """Trace a step of an execution; steps are counted from 1."""
        self._step = self._row(number, step)  # now: the server needs nothing of the worker then
        try:
            yield
        finally:
            self._step = None

    def note_step(self) -> None:
        """Note, in the graph of a step, that this step was applied."""
        if self._step is not None:
            self._note(*self._step)

    def _row(self, number: tf.Tensor, steps: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return, on the server, the index of an execution's row and what it says of so many steps."""
        with tf.device(self._rows.device):
            return number % _ROWS, number * _MORE_THAN_STEPS + tf.cast(steps, tf.int64)

    def _note(self, index: tf.Tensor, row: tf.Tensor) -> None:
        tf.raw_ops.ResourceScatterUpdate(
            resource=self._rows.handle, indices=index, updates=row, name="note_applied_steps"
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

    def _read_row(self, index: int) -> int:
        # The caller may be about to use another task, which fails for reasons of its own.
        with own_executor(), tf.device(None):
            return int(self._rows.sparse_read([index]).numpy()[0])

    def applied(self, number: int) -> int:
        """Return how many steps of an execution were applied before the worker was lost that ran it."""
        self._has_lost = True
        time.sleep(_SECONDS_TO_APPLY)
        noted, steps = divmod(self._read_row(number % _ROWS), _MORE_THAN_STEPS)
        if noted != number:
            return 0
        _log.info(
            "a lost worker has applied %d steps of an execution, and another continues after them", steps
        )
        return steps
