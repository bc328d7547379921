"""Read and assign all variables that training changes, and take their values from the chief."""

import logging
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfdist._utils.keras_2_and_3 import all_variables, is_keras_2, keras_of
from tfdist._utils.keras_private import layers_of, learning_rate_variable, variable_of_tensorflow
from tfdist._utils.nested_optimizers import optimizer_variables, optimizers_within, without_loss_scale
from tfdist._utils.strategy_kinds import has_mirrored_workers
from tfdist.coordination.calls_between_tasks import fetch
from tfdist.errors import ConfigError
from tfdist.training.parameter_servers.sharded_keras_variables import (
    built_on_parts,
    put_together,
    slots_of_whole_variables,
)

_log = logging.getLogger("tfdist")
_BESIDE = "beside"  # begins the names of variables that only training reads


class State:
    """The variables of a model, its optimizer and its random generators, by name.

    Their values are those of whole variables, also where a variable and its slots are in shards.
    """

    def __init__(
        self,
        model: Any,
        strategy: tf.distribute.Strategy,
        others: Sequence[Any],
        *,
        beside: Sequence[Any] = (),
        has_learning_rate: bool = False,
    ) -> None:
        """Collect the variables of a model and its optimizer, `others`, and `beside` those that tests need.

        Without `has_learning_rate`, the learning rate stays the one that the model is compiled with now.
        """
        self._strategy = strategy
        optimizer = model.optimizer
        if optimizer is not None and not getattr(optimizer, "built", False):
            with strategy.scope(), built_on_parts(optimizer):
                optimizer.build(model.trainable_variables)
        # Each phase resets the metrics.
        skipped = {id(variable) for metric in model.metrics for variable in metric.variables}
        for candidate in () if has_learning_rate else (optimizer, *optimizers_within(optimizer)):
            skipped.add(id(learning_rate_variable(candidate)))
        kept = [
            ("model", [[variable] for variable in all_variables(model)]),
            ("optimizer", slots_of_whole_variables(optimizer_variables(optimizer))),
            ("random", [[variable] for variable in others]),
            (_BESIDE, [[variable] for variable in beside]),
        ]
        self._variables: dict[str, list[Any]] = {}  # one, or the slots of a variable's parts
        for owner, lists in kept:
            for variables in lists:
                first = variables[0]
                if id(first) in skipped:
                    continue
                skipped.add(id(first))
                name = f"{owner}/{len(self._variables)}/{getattr(first, 'path', None) or first.name}"
                self._variables[name] = variables

    @property
    def names(self) -> list[str]:
        """Return the names of all variables, in their order."""
        return list(self._variables)

    def values(self) -> dict[str, tf.Tensor]:
        """Return the whole values of all variables, by name."""
        with self._strategy.scope():
            return {
                name: put_together([tf.convert_to_tensor(self._copy(variable)) for variable in variables])
                for name, variables in self._variables.items()
            }

    def assign(self, values: Sequence[Any]) -> None:
        """Assign values to all variables, in their order."""
        with self._strategy.scope():
            for variables, value in zip(self._variables.values(), values, strict=True):
                parts = (
                    tf.split(value, [variable.shape[0] for variable in variables])
                    if variables[1:]
                    else [value]
                )
                for variable, part in zip(variables, parts, strict=True):
                    variable_of_tensorflow(variable).assign(tf.cast(part, variable.dtype))

    def _copy(self, variable: Any) -> Any:
        """Return this process's copy: reading a moving average of Keras 2 would average over all workers."""
        value = variable_of_tensorflow(variable)
        is_copied = has_mirrored_workers(self._strategy)
        return self._strategy.experimental_local_results(value)[0] if is_copied else value


def is_read_by_tests(name: str) -> bool:
    """Return whether evaluations may read a variable, by its name in a `State` or a checkpoint."""
    return not name.startswith(f"{_BESIDE}/")


def other_optimizers(model: Any, *, has_own_step: bool, refuses_unbuilt: bool = True) -> list[Any]:
    """Return the variables of optimizers that a model and its layers have beside the one that `fit` uses.

    A step of the model's own may use those of layers that are compiled models.

    Raises:
        ConfigError: Such an optimizer is not built, so its variables do not exist yet; without
            `refuses_unbuilt`, a warning says so.
    """
    variables: list[Any] = []
    for one in optimizers_beside(model):
        layer, name, value = one
        if not (one.is_attribute_of(model) or has_own_step):
            continue
        if layer is not model and id(getattr(layer, "optimizer", None)) == id(value):  # of a compiled model
            if not layer.trainable_variables:
                continue
            if not value.built:
                value.build(layer.trainable_variables)
        if not value.built:
            where = "" if layer is model else f" of {layer.name}"
            problem = f"its {name}{where} is not built, so a checkpoint could not restore it"
            remedy = f"Call {name}.build(…) on the variables that it trains, before fit"
            if refuses_unbuilt:
                raise ConfigError(f"model {model.name}", problem, remedy=remedy)
            _log.warning("model %s: %s. %s", model.name, problem, remedy)
            continue
        variables += optimizer_variables(value)
    return variables


class OptimizerBeside(NamedTuple):
    """An optimizer that is an attribute of a model or of one of its layers."""

    layer: Any
    name: str
    optimizer: Any

    def is_attribute_of(self, model: Any) -> bool:
        """Return whether it is an attribute of the model itself, and not in a list or a layer."""
        return self.layer is model and "[" not in self.name


def optimizers_beside(model: Any) -> list[OptimizerBeside]:
    """Return the optimizers of a model and its layers beside the one that the model is compiled with."""
    if is_keras_2(model):  # whose checkpoints track them
        return []
    kind = keras_of(model).optimizers.Optimizer
    own = {id(each) for each in (model.optimizer, *optimizers_within(model.optimizer))}
    found: dict[int, OptimizerBeside] = {}
    for layer, name, value in _attributes_within(model):
        if isinstance(value, kind) and id(value) not in own:
            one = OptimizerBeside(layer, name, value)
            if id(value) not in found or one.is_attribute_of(model):
                found[id(value)] = one
    return list(found.values())


def variables_of_tensorflow(model: Any) -> list[Any]:
    """Return each `tf.Variable` of a model and its layers, of which Keras 3 has no list.

    One whose shape may change is left out, and one of texts. Keras 2 has them among the model's own.
    """
    if is_keras_2(model):
        return []
    found = {
        id(value): value
        for _, _, value in _attributes_within(model)
        if hasattr(value, "assign") and not hasattr(value, "path") and hasattr(value, "dtype")
    }
    return [
        value
        for value in found.values()
        if value.dtype not in (tf.string, tf.resource, tf.variant) and value.shape.is_fully_defined()
    ]


def _attributes_within(model: Any) -> Iterator[tuple[Any, str, Any]]:
    """Yield each attribute of a model and its layers, also within lists and dicts: layer, name and value."""

    def within(name: str, value: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(value, (list, tuple, dict)):
            parts = value.items() if isinstance(value, dict) else enumerate(value)
            for key, part in parts:
                yield from within(f"{name}[{key!r}]", part)
        else:
            yield name, value

    for layer in layers_of(model):
        for attribute, value in vars(layer).items():
            if attribute.startswith("_self_"):  # TensorFlow's own list of the others
                continue
            for name, part in within(attribute, value):
                yield layer, name, part


def learning_rate(model: Any) -> float | None:
    """Return the learning rate of a model's optimizer; None where it is a schedule."""
    variable = learning_rate_variable(without_loss_scale(model.optimizer))
    if not hasattr(variable, "assign"):
        return None
    return float(fetch(tf.convert_to_tensor(variable_of_tensorflow(variable))))


def set_learning_rate(model: Any, value: float) -> None:
    """Set the learning rate of a model's optimizer."""
    learning_rate_variable(without_loss_scale(model.optimizer)).assign(value)
