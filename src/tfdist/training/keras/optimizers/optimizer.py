"""Update a Keras 3 model's weights with gradients that all replicas share.

Keras 3 puts the scaling of losses, the accumulation of gradients and the overwriting of weights by their
averages into branches of each replica's graph. Replicas cannot exchange values in a branch that each takes
for itself. Here all replicas together take each branch once, and run their part inside it.
"""

import functools
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from typing import Any, Literal

import tensorflow as tf

from tfdist._utils.keras_private import (
    accumulate_gradients,
    accumulators_of,
    apply_update,
    average_weights,
    constraints_ignored,
    gradients_added_up_by,
    has_constraint_of_keras,
    is_sgd_of_keras,
    known_gradients,
    overwrite_by_averages,
    remake_in_scope,
    step_counter,
    variable_of_tensorflow,
)
from tfdist._utils.nested_optimizers import (
    by_optimizer,
    is_loss_scaler,
    optimizer_variables,
    optimizers_within,
    without_loss_scale,
    wrapped_by,
)
from tfdist._utils.temporary_patches import attributes_set
from tfdist.errors import ConfigError
from tfdist.strategies.gradient_arithmetic import divided, tensors_of
from tfdist.training.keras.optimizers.fused_sgd_and_adagrad import fused
from tfdist.training.parameter_servers.applied_steps import AppliedSteps

# Sends gradients to their variables; takes and returns pairs of both, as optimizers of Keras do.
Deliver = Callable[[Sequence[tuple[Any, Any]]], list[tuple[Any, Any]]]


def move_into_scope(optimizer: Any, strategy: tf.distribute.Strategy) -> None:
    """Make the variables of an optimizer again in a strategy's scope, if it was made outside of one.

    Each replica would count a step in a variable that is the same for all, and remote workers have none.
    """
    is_own = strategy.extended.variable_created_in_scope
    outside = [each for each in optimizer_variables(optimizer) if not is_own(each.value)]
    if outside:
        with strategy.scope():
            for inner in optimizers_within(optimizer):
                remake_in_scope(inner, [])
            remake_in_scope(optimizer, outside)


def adds_rows_up(optimizer: Any) -> bool:
    """Return whether a sparse gradient gives the same update if the slices of a row are added up before.

    Other optimizers square slice by slice, and clipping measures slice by slice.
    """
    inner = without_loss_scale(optimizer)
    clips = any(getattr(inner, name) for name in ("clipvalue", "clipnorm", "global_clipnorm"))
    return not clips and (is_sgd_of_keras(inner) or hasattr(inner, "only_rows_with_gradient"))


def loss_scale(optimizer: Any) -> tf.Tensor | None:
    """Return the factor that multiplies the loss of one step, None if there is none.

    Other workers may change the factor while this worker computes. So the caller reads it once, and passes it
    to `Update.apply` with the gradients. `optimizer` may be None.
    """
    if is_loss_scaler(optimizer):
        return tf.convert_to_tensor(optimizer.dynamic_scale.value)
    factor = getattr(optimizer, "loss_scale_factor", None)
    return None if factor is None else tf.constant(factor, tf.float32)


def counter_of_all_steps(optimizer: Any) -> Any:
    """Return the variable that counts each step; None if some steps are not counted, or may not be."""
    return None if is_loss_scaler(optimizer) or wrapped_by(optimizer) else step_counter(optimizer)


class Update:
    """One update of a model's weights; the public methods are for cross-replica context."""

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        optimizer: Any,
        variables: list[Any],
        *,
        deliver: Deliver | None = None,
        applied: AppliedSteps | None = None,
        entry: Literal["apply_gradients", "apply"] | None = "apply_gradients",
    ) -> None:
        """Prepare to update variables.

        Args:
            strategy: The strategy.
            optimizer: The optimizer.
            variables: The variables.
            deliver: A function that sends gradients to their variables; if None, TensorFlow does.
            applied: Where asynchronous workers note that this step was applied.
            entry: The method that Keras would call, of those that an optimizer's class may override; None if
                this class has been called already.
        """
        self._strategy, self._variables = strategy, variables
        self._scaler: Any = optimizer if is_loss_scaler(optimizer) else None
        self._optimizer = without_loss_scale(optimizer)
        self._by_optimizer = by_optimizer(self._optimizer, variables)
        # Optimizers that others call send no gradients: all are sent at once, before.
        self._inner = wrapped_by(self._optimizer)
        self._steps = getattr(self._optimizer, "gradient_accumulation_steps", None)
        self._deliver, self._applied = deliver, applied
        # A custom step that calls a LossScaleOptimizer has not called the one within it.
        self._entry = "apply" if entry is None and self._scaler is not None else entry
        self._is_noted = applied is not None and applied.are_noted_by_update
        self._arrived: list[Any] = []  # the gradients, where the step counter counts

    def apply(self, gradients: list[Any], scale: tf.Tensor | None) -> None:
        """Apply the gradients in one step; a dynamic loss scale skips steps with NaN or infinite gradients.

        Args:
            gradients: The global gradients.
            scale: The factor that multiplied the loss.
        """
        self._arrived = tensors_of(gradients)
        with ExitStack() as stack:
            stack.enter_context(fused(self._optimizer))
            for optimizer in (self._optimizer, *self._inner):
                counter = step_counter(optimizer)
                count = functools.partial(self._count, counter, is_noted=optimizer is self._optimizer)
                stack.enter_context(attributes_set(counter, assign_add=count))
            if self._scaler is None:
                self._step(gradients, None)  # the optimizer divides by a constant factor itself
                return
            # The gradients are sums over the replicas: a NaN or infinity of one replica reaches all.
            are_finite = self._strategy.run(_are_finite, args=(gradients,))
            is_finite = self._strategy.experimental_local_results(are_finite)[0]
            tf.cond(is_finite, lambda: self._taken(gradients, scale), lambda: self._left_out(scale))

    def _taken(self, gradients: list[Any], scale: Any) -> None:
        self._step(gradients, scale)
        counter = self._scaler.step_counter.value
        # Not ==: two workers may count at once, and neither then sees the exact number.
        is_due = counter >= self._scaler.dynamic_growth_steps - 1

        def grow() -> None:
            counter.assign(tf.zeros([], counter.dtype))
            self._scaler.dynamic_scale.value.assign(scale * 2.0)

        tf.cond(is_due, grow, lambda: _nothing(counter.assign_add(tf.ones([], counter.dtype))))

    def _left_out(self, scale: Any) -> None:
        counter = self._scaler.step_counter.value
        counter.assign(tf.zeros([], counter.dtype))
        # Half of the scale that was too large: workers that notice at the same time lower it only once.
        self._scaler.dynamic_scale.value.assign(scale * 0.5)

    def _step(self, gradients: list[Any], scale: tf.Tensor | None) -> None:
        if self._by_optimizer is not None:
            self._step_of_each(self._by_optimizer, self._sent(gradients, scale))
            return
        if self._inner:
            gradients, scale = self._sent(gradients, scale), None
        optimizer, steps = self._optimizer, self._steps
        has_branches = _has_branches(optimizer)
        if any(map(_has_branches, self._inner)) or (has_branches and self._overrides_entry("apply")):
            problem = (
                "overrides how gradients are applied, and counts steps by gradient_accumulation_steps or"
            )
            remedy = "Override update_step, or leave these options out"
            raise ConfigError("optimizer", f"{problem} ema_overwrite_frequency", remedy=remedy)
        if not has_branches:
            with constraints_ignored([each for each in self._variables if has_constraint_of_keras(each)]):
                self._run(self._apply, gradients, scale)
            self._constrain_copies(gradients)
            return
        if steps:
            tf.cond(
                (step_counter(optimizer).value + 1) % steps == 0,
                lambda: self._update_and_reset(gradients, scale),
                lambda: self._run(self._accumulate, gradients, scale),
            )
        else:
            self._run(self._update, gradients, scale)
        self._average()
        self._run(self._constrain, gradients)
        self._constrain_copies(gradients)
        step_counter(optimizer).assign_add(1)

    def _sent(self, gradients: list[Any], scale: tf.Tensor | None) -> list[Any]:
        """Return all gradients, without the factor of the loss, where their variables are."""
        variables = [variable_of_tensorflow(variable) for variable in self._variables]

        def delivered(gradients: list[Any], scale: tf.Tensor | None) -> list[Any]:
            pairs = zip(_unscaled(gradients, scale), variables, strict=True)
            there = self._delivered([pair for pair in pairs if pair[0] is not None])
            by_variable = {id(variable): gradient for gradient, variable in there}
            return [by_variable.get(id(variable)) for variable in variables]

        sent: list[Any] = self._strategy.run(delivered, args=(gradients, scale))
        return sent

    def _step_of_each(self, by_optimizer: list[tuple[Any, list[int]]], gradients: list[Any]) -> None:
        """Run each optimizer of a MultiOptimizer on its variables."""
        for optimizer, places in by_optimizer:
            own = [self._variables[place] for place in places]
            update = Update(self._strategy, optimizer, own, entry="apply")
            update.apply([gradients[place] for place in places], None)
        step_counter(self._optimizer).assign_add(1)

    @property
    def _class_of_keras(self) -> Any:
        return next(each for each in type(self._optimizer).__mro__ if each.__module__.startswith("keras."))

    def _overrides_entry(self, *others: str) -> bool:
        """Return whether the optimizer's class overrides the method that Keras would call, or others."""
        if self._entry is None:
            return False
        kind, of_keras = type(self._optimizer), self._class_of_keras
        return any(getattr(kind, name) is not getattr(of_keras, name) for name in (self._entry, *others))

    def _update_and_reset(self, gradients: list[Any], scale: tf.Tensor | None) -> None:
        self._run(self._update, gradients, scale)
        for accumulator in accumulators_of(self._optimizer):
            accumulator.value.assign(tf.zeros(accumulator.shape, accumulator.dtype))

    def _average(self) -> None:
        optimizer = self._optimizer
        if not optimizer.use_ema:
            return
        average_weights(optimizer)
        frequency = optimizer.ema_overwrite_frequency
        if frequency:
            tf.cond(
                (tf.convert_to_tensor(optimizer.iterations) + 1) % frequency == 0,
                lambda: overwrite_by_averages(optimizer),
                lambda: None,
            )

    def _constrain_copies(self, gradients: list[Any]) -> None:
        """Constrain weights by Keras's own constraints, each copy where it is.

        Keras assigns a constrained weight in each replica, for which TensorFlow averages the copies: they
        may differ if a constraint is the user's own, and draws random numbers.
        """
        for variable, gradient in zip(self._variables, gradients, strict=True):
            if gradient is not None and has_constraint_of_keras(variable):
                self._strategy.extended.update(
                    variable_of_tensorflow(variable),
                    lambda copy, keep=variable.constraint: copy.assign(keep(copy)),
                )

    def _run(self, change: Callable[..., None], *args: Any) -> None:
        # Keras 3 clips each replica's gradients before it adds them up, unlike one process, which clips those
        # of the whole batch. These gradients are global already. Where Keras would add them up, tfdist
        # delivers them.
        add_up: Callable[[Any], Any] = list if self._inner else self._delivered
        with ExitStack() as stack:
            for optimizer in (self._optimizer, *self._inner):
                stack.enter_context(gradients_added_up_by(optimizer, add_up))
            self._strategy.run(change, args=args)

    def _delivered(self, grads_and_vars: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        pairs = list(grads_and_vars) if self._deliver is None else self._deliver(grads_and_vars)
        if self._applied is not None:  # and after this no server needs anything of the worker
            pairs = _when_all_are_there(pairs, self._applied)
        if not _has_branches(self._optimizer):  # or it counts outside of a branch
            self._arrived = tensors_of([gradient for gradient, _ in pairs])
        return pairs

    def _count(self, variable: Any, value: Any, *, is_noted: bool) -> Any:
        """Count a step in a variable by TensorFlow's own, atomic assign_add, once gradients are there.

        Keras 3's is `assign(self + value)`: if two workers count at once, one count is lost. Without an
        order, a worker that is lost while it computes may have counted the step already.
        """
        is_noted = is_noted and self._is_noted
        # If a server notes the step, it asks no worker for this number any more.
        with tf.device(variable.value.device) if is_noted else nullcontext():
            added = tf.cast(value, variable.dtype)
        with tf.control_dependencies(self._arrived):
            counted = variable.value.assign_add(added)
        if self._applied is not None and is_noted:
            with tf.control_dependencies([tf.convert_to_tensor(counted)]):
                self._applied.note_step()
        return counted

    # -- in replica context --

    def _apply(self, gradients: list[Any], scale: tf.Tensor | None) -> None:
        unscaled = _unscaled(gradients, scale)
        # Keras's `fit` calls the method that a class may override, unless the losses are scaled.
        if self._entry is None:
            self._class_of_keras.apply(self._optimizer, unscaled, self._variables)
        elif self._scaler is None and self._entry == "apply_gradients" and self._overrides_entry():
            self._optimizer.apply_gradients(zip(unscaled, self._variables, strict=True))
        else:
            self._optimizer.apply(unscaled, self._variables)

    def _update(self, gradients: list[Any], scale: tf.Tensor | None) -> None:
        known, variables = self._known(gradients, scale)
        if self._steps:
            accumulators = accumulators_of(self._optimizer, variables)
            sums = [tf.convert_to_tensor(accumulator.value) for accumulator in accumulators]
            both = zip(known, sums, strict=True)
            known = [(tf.convert_to_tensor(gradient) + total) / self._steps for gradient, total in both]
        apply_update(self._optimizer, known, variables)

    def _accumulate(self, gradients: list[Any], scale: tf.Tensor | None) -> None:
        known, variables = self._known(gradients, scale)
        dense = [tf.convert_to_tensor(gradient) for gradient in known]
        accumulate_gradients(self._optimizer, dense, variables)

    def _constrain(self, gradients: list[Any]) -> None:
        for variable, gradient in zip(self._variables, gradients, strict=True):
            if gradient is None or variable.constraint is None or has_constraint_of_keras(variable):
                continue
            variable.assign(variable.constraint(variable))

    def _known(self, gradients: list[Any], scale: tf.Tensor | None) -> tuple[list[Any], list[Any]]:
        known, variables = known_gradients(self._optimizer, gradients, self._variables)
        factor = self._optimizer.loss_scale_factor
        return _unscaled(_unscaled(known, scale), factor), variables


def _when_all_are_there(
    grads_and_vars: Sequence[tuple[Any, Any]], applied: AppliedSteps
) -> list[tuple[Any, Any]]:
    """Return gradients that exist on the devices of their variables as soon as all others do.

    A worker may be lost while it sends them. Then no server changes anything; otherwise all of them do. The
    last ones may come after the chief has given the step to another worker, and then none of them exists.
    """
    there = [(_copied_to(gradient, variable), variable) for gradient, variable in grads_and_vars]
    tensors = tensors_of([gradient for gradient, _ in there])
    with tf.control_dependencies(tensors):
        checks = applied.refuse_if_given_up()
    with tf.control_dependencies(checks or tensors):
        return [(_copied_to(gradient, variable), variable) for gradient, variable in there]


def _copied_to(gradient: Any, variable: Any) -> Any:
    if gradient is None:
        return None
    with tf.device(variable.device):
        return tf.nest.map_structure(tf.identity, gradient, expand_composites=True)


def _has_branches(optimizer: Any) -> bool:
    return bool(optimizer.gradient_accumulation_steps or optimizer.ema_overwrite_frequency)


def _nothing(_: Any) -> None:
    """Return None, as the other branch does."""


def _are_finite(gradients: list[Any]) -> tf.Tensor:
    numbers = [tensor for tensor in tensors_of(gradients) if tensor.dtype.is_floating]
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(number)) for number in numbers])


def _unscaled(gradients: list[Any], scale: Any) -> list[Any]:
    return gradients if scale is None else [divided(gradient, scale) for gradient in gradients]
