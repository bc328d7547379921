"""Find the variables that training changes besides those of the model and its optimizer."""

from typing import Any

from tfdist._utils.keras_private import learning_rate_variable
from tfdist.coordination.calls_between_tasks import fetch
from tfdist.errors import ConfigError
from tfdist.training.keras.compat import keras_of
from tfdist.training.variables import optimizer_variables

__all__ = ["learning_rate", "other_optimizers", "set_learning_rate"]


def other_optimizers(model: Any) -> list[Any]:
    """Return the variables of optimizers that a model has beside the one that it is compiled with.

    Raises:
        ConfigError: Such an optimizer is not built, so its variables do not exist yet.
    """
    kind = keras_of(model).optimizers.Optimizer
    variables: list[Any] = []
    for name, value in vars(model).items():
        inner = getattr(model.optimizer, "inner_optimizer", None)
        if not isinstance(value, kind) or value is model.optimizer or value is inner:
            continue
        if not value.built:
            problem = f"its {name} is not built, so a checkpoint could not restore it"
            remedy = f"Call model.{name}.build(…) on the variables that it trains, before fit"
            raise ConfigError(f"model {model.name}", problem, remedy=remedy)
        variables += optimizer_variables(value)
    return variables


def learning_rate(model: Any) -> float | None:
    """Return the learning rate of a model's optimizer; None where it is a schedule."""
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    variable = learning_rate_variable(optimizer)
    return float(fetch(variable.value)) if hasattr(variable, "assign") else None


def set_learning_rate(model: Any, value: float) -> None:
    """Set the learning rate of a model's optimizer."""
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    learning_rate_variable(optimizer).assign(value)
