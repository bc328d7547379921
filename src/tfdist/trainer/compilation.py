"""Compile a model with what a config says; what the config leaves out stays as the model was compiled."""

import logging
from typing import Any

import tensorflow as tf

from tfdist._utils.keras_private import compile_arguments, is_compiled
from tfdist.errors import ConfigError
from tfdist.models.logits_or_probabilities import Outputs
from tfdist.trainer.config import Config
from tfdist.trainer.losses_and_metrics import from_logits_of, has_one_hot_labels, make_loss, make_metric
from tfdist.trainer.optimizers import make_optimizer
from tfdist.trainer.sections.train import TrainSection
from tfdist.training.keras.model_facts import has_own

_log = logging.getLogger("tfdist")


def compile_model(model: Any, config: Config, outputs: Outputs, *, steps: int) -> None:
    """Compile a model in the strategy's scope.

    Args:
        model: The model; if it is compiled, the config's values replace those that it was compiled with.
        config: The config.
        outputs: What the model returns.
        steps: The number of steps in the run.

    Raises:
        ConfigError: The config names something that does not exist or does not fit the model.
    """
    if is_compiled(model) and has_own(model, "compile"):
        _refuse_changes(model, config.train)
        return
    given = compile_arguments(model) if is_compiled(model) else {}
    changed = _changed(model, given, config, outputs, steps)
    if changed:
        model.compile(**{**given, **changed})


def _changed(
    model: Any, given: dict[str, Any], config: Config, outputs: Outputs, steps: int
) -> dict[str, Any]:
    """Return the arguments of `compile` that are not those that the model was compiled with."""
    section = config.train
    changed: dict[str, Any] = {}
    own = getattr(model, "optimizer", None) if given else None
    optimizer = make_optimizer(section, own, steps)
    if optimizer is not None:
        changed["optimizer"] = optimizer
    if section.loss is not None or not given:
        changed["loss"] = make_loss(section.loss or "sparse_categorical_crossentropy", outputs)
    else:
        _warn_of_other_outputs(model, outputs)
    one_hot = has_one_hot_labels(config, changed.get("loss", given.get("loss")))
    metrics = tf.nest.flatten(given.get("metrics") or [])
    if section.metrics is not None:
        metrics = [make_metric(metric, outputs, one_hot=one_hot) for metric in section.metrics]
    if not any(_name_of(metric) == "accuracy" for metric in metrics):
        metrics = ["accuracy", *metrics]  # until_accuracy, the best checkpoint and the report need it
        changed["metrics"] = metrics
    elif section.metrics is not None:
        changed["metrics"] = metrics
    if not given:
        changed["steps_per_execution"] = section.steps_per_execution or 1
    if section.jit_compile is not None:
        changed["jit_compile"] = section.jit_compile
    return changed


def counts_right_classes(model: Any) -> bool:
    """Return whether the accuracy of a compiled model is Keras's own: the share of right classes."""
    if any(has_own(model, method) for method in ("compile", "test_step", "compute_metrics")):
        return False
    metrics = tf.nest.flatten(compile_arguments(model).get("metrics") or [])
    known = (str, tf.keras.metrics.SparseCategoricalAccuracy, tf.keras.metrics.CategoricalAccuracy)
    return all(type(metric) in known for metric in metrics if _name_of(metric) == "accuracy")


def _refuse_changes(model: Any, section: TrainSection) -> None:
    names = ("optimizer", "learning_rate", "schedule", "loss", "metrics", "jit_compile")
    said = [name for name in names if getattr(section, name) is not None] + ["warmup"] * bool(section.warmup)
    if said:
        problem = f"cannot change model {model.name}, which is compiled by a compile of its own"
        raise ConfigError(
            f"train.{said[0]}", problem, remedy="Leave it out, and set it in the model's function"
        )


def _name_of(metric: Any) -> str:
    return metric if isinstance(metric, str) else str(getattr(metric, "name", ""))


def _warn_of_other_outputs(model: Any, outputs: Outputs) -> None:
    """Warn if a loss that the model was compiled with takes the other kind of outputs."""
    from_logits = from_logits_of(getattr(model, "loss", None))
    if from_logits is not None and outputs != "unknown" and from_logits != (outputs == "logits"):
        _log.warning(
            "model %s returns %s, but its loss has from_logits=%s, and so computes something else",
            model.name,
            outputs,
            from_logits,
        )


def check_results(model: Any, results: dict[str, float]) -> None:
    """Raise ConfigError if an evaluation lacks what the report and the best checkpoint need."""
    missing = [name for name in ("loss", "accuracy") if name not in results]
    if missing:
        received = ", ".join(results) or "nothing"
        remedy = f"Let its test_step return {missing[0]}, too"
        raise ConfigError(
            f"model {model.name}",
            expected="loss and accuracy from an evaluation",
            received=received,
            remedy=remedy,
        )
