"""Change a Keras 3 model's weights by gradients that all replicas share, with the branches that this takes.

Keras 3 puts the scaling of losses, the accumulation of gradients and the overwriting of weights by their
averages into branches of each replica's graph. Replicas cannot meet in a branch that each takes for itself.
Here the branches are taken once for all replicas, and each of them runs what the replicas do.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdist.loop.fused import fuse

__all__ = ["Deliver", "Updating"]

# Brings gradients to where their variables are; of pairs of both, as optimizers of Keras have them.
Deliver = Callable[[Sequence[tuple[Any, Any]]], list[tuple[Any, Any]]]


class Updating:
    """Update a model's weights; every method is for the context in which all replicas are one."""

    def __init__(self, strategy: tf.distribute.Strategy, optimizer: Any, variables: list[Any]) -> None:
        self._strategy = strategy
        self._scaler: Any = optimizer if hasattr(optimizer, "inner_optimizer") else None
        self._optimizer = getattr(optimizer, "inner_optimizer", optimizer)
        self._steps = getattr(self._optimizer, "gradient_accumulation_steps", None)
        self._variables = variables
        self._deliver: Deliver | None = None
        _count_exactly(self._optimizer)
        fuse(self._optimizer)

    def loss_scale(self) -> tf.Tensor | None:
        """Read what the loss of one step is multiplied with, if it is.

        Other workers may change it while this one computes: so it is read once, and given back with the
        gradients.
        """
        if self._scaler is not None:
            return tf.convert_to_tensor(self._scaler.dynamic_scale.value)
        factor = self._optimizer.loss_scale_factor
        return None if factor is None else tf.constant(factor, tf.float32)

    def apply(self, gradients: list[Any], scale: tf.Tensor | None, deliver: Deliver | None = None) -> None:
        """Do a step with the gradients, or leave it out where they are no numbers.

        Args:
            gradients: The global gradients.
            scale: What the loss was multiplied with.
            deliver: How gradients come to their variables; by TensorFlow where None.
        """
        self._deliver = deliver
        if self._scaler is None:
            self._step(gradients, None)  # a constant factor is taken out by the optimizer
            return
        # The gradients are the sum over the replicas: what is not a number on one of them is none on all.
        found = self._strategy.run(_are_finite, args=(gradients,))
        is_finite = self._strategy.experimental_local_results(found)[0]
        tf.cond(is_finite, lambda: self._taken(gradients, scale), lambda: self._left_out(scale))

    def _taken(self, gradients: list[Any], scale: Any) -> None:
        self._step(gradients, scale)
        counter = self._scaler.step_counter.value
        # Two workers may count at once, and neither then sees the very number.
        is_due = counter >= self._scaler.dynamic_growth_steps - 1

        def grow() -> None:
            counter.assign(tf.zeros([], counter.dtype))
            self._scaler.dynamic_scale.value.assign(scale * 2.0)

        tf.cond(is_due, grow, lambda: _nothing(counter.assign_add(tf.ones([], counter.dtype))))

    def _left_out(self, scale: Any) -> None:
        counter = self._scaler.step_counter.value
        counter.assign(tf.zeros([], counter.dtype))
        # Of the scale that was too much, so that workers who find out at once lower it once.
        self._scaler.dynamic_scale.value.assign(scale * 0.5)

    def _step(self, gradients: list[Any], scale: tf.Tensor | None) -> None:
        optimizer, steps = self._optimizer, self._steps
        if not steps and not optimizer.ema_overwrite_frequency:
            self._run(self._apply, gradients, scale)
            return
        if steps:
            tf.cond(
                (optimizer._iterations.value + 1) % steps == 0,
                lambda: self._update_and_reset(gradients, scale),
                lambda: self._run(self._accumulate, gradients, scale),
            )
        else:
            self._run(self._update, gradients, scale)
        self._average()
        self._run(self._constrain)
        optimizer._iterations.assign_add(1)

    def _update_and_reset(self, gradients: list[Any], scale: tf.Tensor | None) -> None:
        self._run(self._update, gradients, scale)
        for each in self._optimizer._accumulated_gradients:
            each.value.assign(tf.zeros(each.shape, each.dtype))

    def _average(self) -> None:
        optimizer = self._optimizer
        if not optimizer.use_ema:
            return
        optimizer._update_model_variables_moving_average(optimizer._trainable_variables)
        frequency = optimizer.ema_overwrite_frequency
        if frequency:
            tf.cond(
                (tf.convert_to_tensor(optimizer.iterations) + 1) % frequency == 0,
                lambda: optimizer._overwrite_model_variables_with_average_value(
                    optimizer._trainable_variables
                ),
                lambda: None,
            )

    def _run(self, change: Callable[..., None], *args: Any) -> None:
        with _reduced_already(self._optimizer, self._deliver):
            self._strategy.run(change, args=args)

    # -- in replica context --

    def _apply(self, gradients: list[Any], scale: tf.Tensor | None) -> None:
        self._optimizer.apply(_unscaled(gradients, scale), self._variables)

    def _update(self, gradients: list[Any], scale: tf.Tensor | None) -> None:
        optimizer = self._optimizer
        found, variables = self._known(gradients, scale)
        if self._steps:
            sums = [tf.convert_to_tensor(each.value) for each in self._accumulators(variables)]
            both = zip(found, sums, strict=True)
            found = [(tf.convert_to_tensor(each) + total) / self._steps for each, total in both]
        found = optimizer._clip_gradients(found)
        optimizer._apply_weight_decay(variables)
        optimizer._backend_update_step(found, variables, optimizer.learning_rate)

    def _accumulate(self, gradients: list[Any], scale: tf.Tensor | None) -> None:
        found, variables = self._known(gradients, scale)
        dense = [tf.convert_to_tensor(each) for each in found]
        self._optimizer._backend_increment_gradient_accumulators(dense, self._accumulators(variables))

    def _constrain(self) -> None:
        for variable in self._variables:
            if variable.constraint is not None:
                variable.assign(variable.constraint(variable))

    def _known(self, gradients: list[Any], scale: tf.Tensor | None) -> tuple[list[Any], list[Any]]:
        found, variables = self._optimizer._filter_empty_gradients(gradients, self._variables)
        factor = self._optimizer.loss_scale_factor
        return _unscaled(_unscaled(found, scale), factor), variables

    def _accumulators(self, variables: list[Any]) -> list[Any]:
        optimizer = self._optimizer
        return [optimizer._accumulated_gradients[optimizer._get_variable_index(each)] for each in variables]


def _nothing(_: Any) -> None:
    """Give nothing, as the other branch does."""


def _are_finite(gradients: list[Any]) -> tf.Tensor:
    parts = [tf.nest.flatten(each, expand_composites=True) for each in gradients if each is not None]
    numbers = [each for part in parts for each in part if each.dtype.is_floating]
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(each)) for each in numbers])


def _unscaled(gradients: list[Any], scale: Any) -> list[Any]:
    if scale is None:
        return gradients

    def one(value: Any) -> Any:
        if isinstance(value, tf.IndexedSlices):
            return tf.IndexedSlices(one(value.values), value.indices, value.dense_shape)
        return None if value is None else value / tf.cast(scale, value.dtype)

    return [one(each) for each in gradients]


@contextlib.contextmanager
def _reduced_already(optimizer: Any, deliver: Deliver | None) -> Iterator[None]:
    """Keep the optimizer from adding gradients up over the replicas: they are the global ones already.

    It does that when it has clipped them, right before it changes variables: so there they are delivered.

    Keras 3 clips and accumulates each replica's gradients before it adds them up, which is another clipping
    than one process does on the whole batch; and it has no argument to leave the adding out.
    """
    optimizer._all_reduce_sum_gradients = deliver or list
    try:
        yield
    finally:
        del optimizer._all_reduce_sum_gradients


def _count_exactly(optimizer: Any) -> None:
    """Let the optimizer count its steps by TensorFlow's own, atomic assign_add.

    Keras 3's is `assign(self + value)`: of two workers that count at once, one is lost.
    """
    variable = optimizer._iterations
    variable.assign_add = lambda value: variable.value.assign_add(tf.cast(value, variable.dtype))
