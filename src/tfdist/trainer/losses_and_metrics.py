"""Make the loss and the metrics that a config names, and find what a loss compares."""

import inspect
from collections.abc import Collection
from typing import Any

import tensorflow as tf

from tfdist._utils.import_by_name import import_object
from tfdist._utils.keras_private import is_compiled, is_of_keras
from tfdist._utils.shared_config_types import Named, name_and_arguments
from tfdist.errors import ConfigError, shown
from tfdist.models.logits_or_probabilities import Outputs
from tfdist.trainer.config import Config
from tfdist.trainer.keras_names import call_named, find_class, parameters_of, snake_case

_NO_LOSSES = ("CTC", "Circle", "LossFunctionWrapper")
_NO_METRICS = ("Accuracy", "Mean", "MeanMetricWrapper", "MeanTensor", "Sum")
# They take the model's outputs for probabilities, and have no from_logits.
_NEED_PROBABILITIES = ("KLDivergence", "Poisson", "Dice", "Tversky", "CategoricalGeneralizedCrossEntropy")
_NEED_A_THRESHOLD = ("BinaryAccuracy", "BinaryIoU")
_COMPARE_WITH_THRESHOLD = ("F1Score", "FBetaScore")  # if they are given one
# They compare class numbers, although their names do not begin with "Sparse".
_TAKE_CLASS_NUMBERS = ("IoU", "MeanIoU")


def make_loss(value: Named, outputs: Outputs) -> Any:
    """Return the loss that a config names, for what the model returns.

    Raises:
        ConfigError: There is no such loss, or it does not accept its arguments or fit the outputs.
    """
    name, arguments = name_and_arguments(value)
    place = f"train.loss: {name}"
    if ":" in name:
        loss = _called(place, import_object(name, "train.loss"), arguments)
        if not callable(loss):
            raise ConfigError(place, expected="a function of y_true and y_pred", received=shown(loss))
        return loss
    kind = _loss_class(name)
    return call_named(place, kind, _for_outputs(place, kind, arguments, outputs))


def _loss_class(name: str) -> type:
    return find_class("train.loss", name, tf.keras.losses, tf.keras.losses.Loss, without=_NO_LOSSES)


def make_metric(value: Named, outputs: Outputs, *, one_hot: bool) -> Any:
    """Return the metric that a config names, for what the model returns and the labels; in the scope.

    Raises:
        ConfigError: There is no such metric, or it does not accept its arguments or fit outputs and labels.
    """
    name, arguments = name_and_arguments(value)
    place = f"train.metrics: {name}"
    if ":" in name:
        named = import_object(name, "train.metrics")
        metric = _called(place, named, arguments)
        if isinstance(named, tf.keras.metrics.Metric):
            remedy = "Name its class, or a function that makes it"
            raise ConfigError(place, "is a metric that was made outside of the strategy", remedy=remedy)
        if not callable(metric):
            raise ConfigError(place, expected="a metric", received=shown(metric))
        if getattr(metric, "name", getattr(metric, "__name__", "")) == "loss":
            raise ConfigError(place, "is named 'loss', as the loss is", remedy="Give it another name")
        return metric
    if name in ("accuracy", "acc"):
        return "accuracy"  # Keras finds the kind by the labels
    if name in ("crossentropy", "ce"):
        name = "categorical_crossentropy" if one_hot else "sparse_categorical_crossentropy"
    kind = find_class(
        "train.metrics",
        name,
        tf.keras.metrics,
        tf.keras.metrics.Metric,
        without=_NO_METRICS,
        others=("accuracy", "crossentropy"),
    )
    _check_labels(place, kind, one_hot=one_hot)
    return call_named(place, kind, _for_outputs(place, kind, arguments, outputs))


def _called(place: str, named: Any, arguments: dict[str, Any]) -> Any:
    """Return what a class, or a function with arguments, makes; or the function itself."""
    return call_named(place, named, arguments) if arguments or isinstance(named, type) else named


def _for_outputs(place: str, kind: type, arguments: dict[str, Any], outputs: Outputs) -> dict[str, Any]:
    """Return the arguments with from_logits as the outputs need it; raise if kind and outputs do not fit."""
    parameters = parameters_of(kind)
    remedy = "End the model in a softmax, or take another one"
    if kind.__name__ == "AUC" and outputs == "logits" and not arguments.get("multi_label"):
        # Keras would take a sigmoid of each logit, and compare the results for all classes with each other.
        raise ConfigError(place, "needs probabilities, but the model returns logits", remedy=remedy)
    if "from_logits" not in parameters:
        has_thresholds = not parameters.keys().isdisjoint(("thresholds", "num_thresholds"))
        needs_threshold = has_thresholds or kind.__name__ in _NEED_A_THRESHOLD
        is_free = not arguments.keys().isdisjoint(("thresholds", "threshold", "top_k"))
        needs = kind.__name__ in _NEED_PROBABILITIES or (needs_threshold and not is_free)
        needs = needs or (kind.__name__ in _COMPARE_WITH_THRESHOLD and arguments.get("threshold") is not None)
        if needs and outputs == "logits":
            raise ConfigError(place, "needs probabilities, but the model returns logits", remedy=remedy)
        return _with_classes_of_scores(parameters, arguments)
    if "from_logits" not in arguments:
        if outputs == "unknown":
            problem = "does not know the model's outputs: from 0 to 1, they may be logits or probabilities"
            remedy = f"Write {{name: {snake_case(kind.__name__)}, from_logits: false}} for probabilities"
            raise ConfigError(place, problem, remedy=remedy)
        return {**arguments, "from_logits": outputs == "logits"}
    if arguments["from_logits"] != (outputs == "logits") and outputs != "unknown":
        problem = f"from_logits is {str(arguments['from_logits']).lower()}, but the model returns {outputs}"
        raise ConfigError(place, problem, remedy="Leave from_logits out: tfdist sets it")
    return arguments


def _with_classes_of_scores(parameters: Collection[str], arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments for scores of all classes, which a metric would take for class numbers."""
    return {"sparse_y_pred": False, **arguments} if "sparse_y_pred" in parameters else arguments


def _check_labels(place: str, kind: type, *, one_hot: bool) -> None:
    """Raise ConfigError if a metric of Keras's compares with the other kind of labels."""
    name = snake_case(kind.__name__)
    takes_numbers = "Sparse" in kind.__name__ or kind.__name__ in _TAKE_CLASS_NUMBERS
    if takes_numbers and one_hot:
        problem = "compares with class numbers, but the labels are one-hot"
        raise ConfigError(
            place, problem, remedy=f"Take {name.removeprefix('sparse_')}" if "sparse" in name else ""
        )
    if not takes_numbers and not one_hot:
        has_sparse = hasattr(tf.keras.metrics, f"Sparse{kind.__name__}")
        remedy = f"Take sparse_{name}" if has_sparse else "Take train.loss: categorical_crossentropy"
        raise ConfigError(
            place, "compares with one-hot labels, but the labels are class numbers", remedy=remedy
        )


def from_logits_of(loss: Any) -> bool | None:
    """Return whether a loss takes logits; None if it does not say it.

    Args:
        loss: The loss that a model is compiled with, in any form that Keras accepts.
    """
    for part in tf.nest.flatten(loss):
        try:
            found = tf.keras.losses.get(part) if isinstance(part, str) else part
            parameter = inspect.signature(found).parameters.get("from_logits")
        except (TypeError, ValueError):  # Keras does not know it, or it is no function
            continue
        has_config = hasattr(found, "get_config")
        said = found.get_config().get("from_logits") if has_config else getattr(parameter, "default", None)
        if isinstance(said, bool):
            return said
    return None


def outputs_for_loss(value: Named | None, model: Any) -> Outputs:
    """Return what a model whose outputs are always from 0 to 1 returns, by the loss that it is trained with.

    Args:
        value: The loss of the config; None for that of the model.
        model: The model, compiled or not.
    """
    takes_logits: bool | None = None
    if value is not None:
        name, arguments = name_and_arguments(value)
        takes_logits = arguments.get("from_logits")
        if takes_logits is None and ":" not in name and "from_logits" in parameters_of(_loss_class(name)):
            return "unknown"
    elif is_compiled(model):
        takes_logits = from_logits_of(getattr(model, "loss", None))
    else:
        return "unknown"
    return "logits" if takes_logits else "probabilities"


def has_one_hot_labels(config: Config, loss: Any) -> bool:
    """Return whether labels are one-hot: most losses of Keras compare with such labels.

    Args:
        config: The config.
        loss: The loss that the model is compiled with, in any form that Keras accepts.

    Raises:
        ConfigError: The config says otherwise, but the loss needs the other kind.
    """
    losses = [part for part in tf.nest.flatten(loss) if part is not None]
    need = [_needs_one_hot(part) for part in losses if _is_loss_of_keras(part)]
    wanted = config.data.one_hot
    if wanted is None:
        return any(need)
    if need and wanted != any(need):
        kind = "one-hot labels" if any(need) else "class numbers"
        problem = f"is {str(wanted).lower()}, but the loss compares with {kind}"
        raise ConfigError("data.one_hot", problem, remedy="Leave it out, or take another train.loss")
    return wanted


def _needs_one_hot(loss: Any) -> bool:
    name = loss if isinstance(loss, str) else str(getattr(loss, "__name__", type(loss).__name__))
    return "sparse" not in name.lower()


def _is_loss_of_keras(loss: Any) -> bool:
    """Return whether a loss is one of Keras's, by its name or as an object."""
    return isinstance(loss, str) or is_of_keras(loss if hasattr(loss, "__name__") else type(loss))
