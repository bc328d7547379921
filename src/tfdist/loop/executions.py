"""Run K steps in one graph call, and add up what the metrics counted in them."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.loop.gauge import now, only_after
from tfdist.loop.standing import Standing

__all__ = ["Totals", "make_execution"]

Totals = tuple[tf.Tensor, ...]


def make_execution(
    step: Callable[..., Totals],
    *,
    adds: bool = True,
    is_failing: Callable[[Totals], tf.Tensor] | None = None,
    standing: Callable[[], Standing | None] = lambda: None,
) -> Callable[..., tuple[tf.Tensor, Totals, tf.Tensor]]:
    """Make a function that takes up to so many steps on an iterator.

    It gives how many steps it took: as many as there was data for; the totals with what they add, or where
    that does not add up, what the last step gave; and the seconds that it waited for data. Where the totals
    can say that a step failed, that one is the last. What stands still meanwhile is fetched when the first
    batch has come, and each step is given it besides its batch.
    """

    def execution(iterator: Any, steps: tf.Tensor, totals: Totals) -> tuple[tf.Tensor, Totals, tf.Tensor]:
        still, count = standing(), len(totals)

        def is_unfinished(
            done: tf.Tensor, has_more: tf.Tensor, _: tf.Tensor, *carried: tf.Tensor
        ) -> tf.Tensor:
            is_wanted = tf.logical_and(done < steps, has_more)
            if is_failing is None:
                return is_wanted
            # What replicas have added up is the same in all processes, which so leave the loop together.
            return tf.logical_and(is_wanted, tf.logical_not(is_failing(carried[:count])))

        def body(done: tf.Tensor, _: tf.Tensor, waited: tf.Tensor, *carried: tf.Tensor) -> Any:
            totals, held = carried[:count], carried[count:]
            asked = now(tf.cast(done, tf.float64), after=[done, *totals])
            with tf.control_dependencies([asked]):
                batch = iterator.get_next_as_optional()
            has_value = batch.has_value()
            come = now(asked, after=[has_value])
            has_value, waited = only_after(come, has_value), waited + come - asked

            def add() -> tuple[tf.Tensor, ...]:
                if still is None:
                    here, added = [], step(batch.get_value())
                else:
                    here = tf.cond(tf.equal(done, 0), still.fetch, lambda: list(held))
                    added = step(batch.get_value(), still.pairs(here))
                if not adds:
                    return *added, *here
                return *(total + part for total, part in zip(totals, added, strict=True)), *here

            carried = tf.cond(has_value, add, lambda: carried)
            return done + tf.cast(has_value, tf.int32), has_value, waited, *carried

        nothing = [] if still is None else still.nothing()
        begin = (tf.constant(0), tf.constant(True), tf.zeros([], tf.float64), *totals, *nothing)
        done, _, waited, *carried = tf.while_loop(is_unfinished, body, begin, parallel_iterations=1)
        return done, tuple(carried[:count]), waited

    return execution
