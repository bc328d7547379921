"""Run K steps in one graph call, and pass the metrics' counts from step to step."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import tensorflow as tf

from tfdist.training.data.dataset_workarounds import with_none
from tfdist.training.parameter_servers.applied_steps import AppliedSteps, Begun
from tfdist.training.parameter_servers.variable_cache import PsCache
from tfdist.training.runners.replica_times_and_nan_losses import now, only_after

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
        cache = ps_cache()

        def note(done: tf.Tensor) -> None:
            # The loop has this number only when all of these steps have run.
            if applied is not None and not applied.are_noted_by_update:
                applied.note(begun.number, done)

        def is_unfinished(
            done: tf.Tensor, has_more: tf.Tensor, _: Any, totals: Totals, cached: Any
        ) -> tf.Tensor:
            del cached
            is_wanted = tf.logical_and(done < steps, has_more)
            if is_failing is None:
                return is_wanted
            # The replicas' sums are the same in all processes, so all processes leave the loop together.
            return tf.logical_and(is_wanted, tf.logical_not(is_failing(totals)))

        def body(
            done: tf.Tensor, _: tf.Tensor, waited: tf.Tensor, totals: Totals, cached: list[tf.Tensor]
        ) -> Any:
            note(done)
            requested_at = now(tf.cast(done, tf.float64), after=[done, *tf.nest.flatten(totals)])
            with tf.control_dependencies([requested_at]):
                batch = iterator.get_next_as_optional()
            has_value = batch.has_value()
            arrived_at = now(requested_at, after=[has_value])
            has_value, waited = only_after(arrived_at, has_value), waited + arrived_at - requested_at

            def add() -> tuple[Totals, list[tf.Tensor]]:
                if cache is None:
                    with nullcontext() if applied is None else applied.step(begun.number, done + 1):
                        return step(with_none(batch.get_value()), totals), cached
                fetched = tf.cond(tf.equal(done, 0), lambda: cache.values(begun.call), lambda: cached)
                return step(with_none(batch.get_value()), totals, cache.pairs(fetched)), fetched

            totals, cached = tf.cond(has_value, add, lambda: (totals, cached))
            return done + tf.cast(has_value, tf.int32), has_value, waited, totals, cached

        uninitialized = [] if cache is None else cache.uninitialized()
        done = tf.convert_to_tensor(begun.done)
        begin = (done, tf.constant(True), tf.zeros([], tf.float64), totals, uninitialized)
        done, has_more, waited, totals, _ = tf.while_loop(is_unfinished, body, begin, parallel_iterations=1)
        note(done)
        if cache is not None:
            tf.cond(has_more, tf.no_op, cache.forget)
        return done, totals, waited

    return execution
