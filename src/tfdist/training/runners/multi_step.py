"""Run K steps in one graph call, and pass the metrics' counts from step to step."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import tensorflow as tf

from tfdist.training.data.dataset_workarounds import with_none
from tfdist.training.parameter_servers.applied_steps import AppliedSteps, Begun
from tfdist.training.parameter_servers.variable_cache import PsCache
from tfdist.training.runners.replica_stats import now, only_after

_FROM_THE_BEGINNING = Begun(0, 0)


class Totals(NamedTuple):
    """The counts of the steps so far.

    Attributes:
        metrics: One tensor for each metric variable; after a custom step of the model, its logs.
        stats: The table of ReplicaStats, without rows if nothing is measured.
    """

    metrics: tuple[Any, ...]
    stats: Any


def make_execution(
    step: Callable[..., Totals],
    *,
    is_failing: Callable[[Totals], tf.Tensor] | None = None,
    ps_cache: Callable[[], PsCache | None] = lambda: None,
    applied: AppliedSteps | None = None,
) -> Callable[..., tuple[tf.Tensor, Totals, tf.Tensor]]:
    """Return a function that takes up to a number of steps on an iterator.

    The function returns how many steps it took, fewer if the data ended; the totals after them; and the
    seconds that it waited for data. A step gets its batch and the totals before it, and returns the totals
    after it. If `is_failing` of these totals is true, the step is the last one. The function takes the
    variables of `ps_cache`, which do not change meanwhile, with the first batch, and passes them to each
    step. With `applied`, it continues after the steps of the execution that were applied before, which count
    as taken, and notes each step there.
    """

    def execution(
        iterator: Any, steps: tf.Tensor, totals: Totals, begun: Begun = _FROM_THE_BEGINNING
    ) -> tuple[tf.Tensor, Totals, tf.Tensor]:
        return _Loop(step, is_failing, ps_cache(), applied, iterator, steps, begun).run(totals)

    return execution


class _State(NamedTuple):
    """The state of an execution between two steps.

    Attributes:
        done: The number of steps.
        has_more: Whether the data had a batch for the last one.
        waited: The seconds that the steps have waited for data.
        totals: The totals after them.
        cached: The values of the cached variables, uninitialized before the first step.
    """

    done: tf.Tensor
    has_more: tf.Tensor
    waited: tf.Tensor
    totals: Totals
    cached: list[tf.Tensor]


class _Loop(NamedTuple):
    """The loop over the steps of an execution, in a graph."""

    step: Callable[..., Totals]
    is_failing: Callable[[Totals], tf.Tensor] | None
    cache: PsCache | None
    applied: AppliedSteps | None
    iterator: Any
    steps: tf.Tensor
    begun: Begun

    def run(self, totals: Totals) -> tuple[tf.Tensor, Totals, tf.Tensor]:
        """Return the number of steps, the totals after them, and the seconds that they waited for data."""
        cached = [] if self.cache is None else self.cache.uninitialized()
        done = tf.convert_to_tensor(self.begun.done)
        begin = _State(done, tf.constant(True), tf.zeros([], tf.float64), totals, cached)
        [end] = tf.while_loop(self._is_unfinished, self._next, [begin], parallel_iterations=1)
        self._note(end.done)
        if self.cache is not None:
            tf.cond(end.has_more, tf.no_op, self.cache.forget)
        return end.done, end.totals, end.waited

    def _is_unfinished(self, state: _State) -> tf.Tensor:
        is_wanted = tf.logical_and(state.done < self.steps, state.has_more)
        if self.is_failing is None:
            return is_wanted
        # The replicas' sums are the same in all processes, so all processes leave the loop together.
        return tf.logical_and(is_wanted, tf.logical_not(self.is_failing(state.totals)))

    def _next(self, state: _State) -> list[_State]:
        """Return the state after another step, or after the end of the data."""
        done, _, waited, totals, cached = state
        self._note(done)
        requested_at = now(tf.cast(done, tf.float64), after=[done, *tf.nest.flatten(totals)])
        with tf.control_dependencies([requested_at]):
            batch = self.iterator.get_next_as_optional()
        has_value = batch.has_value()
        arrived_at = now(requested_at, after=[has_value])
        has_value, waited = only_after(arrived_at, has_value), waited + arrived_at - requested_at
        totals, cached = tf.cond(has_value, lambda: self._step_on(batch, state), lambda: (totals, cached))
        return [_State(done + tf.cast(has_value, tf.int32), has_value, waited, totals, cached)]

    def _step_on(self, batch: Any, state: _State) -> tuple[Totals, list[tf.Tensor]]:
        """Return the totals after a step on a batch, and the values of the cached variables."""
        done, _, _, totals, cached = state
        cache, applied, begun = self.cache, self.applied, self.begun
        if cache is None:
            with nullcontext() if applied is None else applied.step(begun.number, done + 1):
                return self.step(with_none(batch.get_value()), totals), cached
        fetched = tf.cond(tf.equal(done, 0), lambda: cache.values(begun.call), lambda: cached)
        return self.step(with_none(batch.get_value()), totals, cache.pairs(fetched)), fetched

    def _note(self, done: tf.Tensor) -> None:
        # The loop has this number only when all of these steps have run.
        if self.applied is not None and not self.applied.are_noted_by_update:
            self.applied.note(self.begun.number, done)
