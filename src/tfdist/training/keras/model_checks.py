"""Check, before anything runs, that a model can be trained in the way that it asks for."""

import logging
from typing import Any

import tensorflow as tf

from tfdist._utils.keras_2_and_3 import is_keras_2, keras_of
from tfdist._utils.keras_private import is_compiled, layers_of
from tfdist._utils.nested_optimizers import optimizers_within
from tfdist._utils.strategy_kinds import is_asynchronous
from tfdist.errors import ConfigError, DataError
from tfdist.training.keras.model_facts import ON_SERVERS, has_own, is_alone, reductions, why_without_xla
from tfdist.training.parameter_servers.sharded_keras_variables import parts_of
from tfdist.training.replicas.reduction import unpacked

_log = logging.getLogger("tfdist")

_VARIABLES = (tf.Variable, tf.distribute.DistributedValues)


def check_model(model: Any, strategy: tf.distribute.Strategy) -> None:
    """Refuse a model that is not compiled, is of another scope, or overrides a method that is not called."""
    keras_of(model)  # raises if it is not a model
    if not is_compiled(model):
        raise ConfigError("model", "is not compiled", remedy="Call model.compile(optimizer, loss, …) first")
    _check_methods(model, strategy)
    check_states(model, strategy)
    if strategy.num_replicas_in_sync > 1 or is_asynchronous(strategy):
        _check_optimizer(model, strategy)
    if not has_own(model, "train_step"):
        if strategy.num_replicas_in_sync > 1:
            _check_loss(model)
        _check_added_losses(model)
    if is_asynchronous(strategy) and model.run_eagerly:
        _log.warning("run_eagerly has no effect under parameter_server: remote workers run graphs")
    if model.jit_compile and (reason := why_without_xla(model, strategy)):
        _log.warning("jit_compile has no effect: %s", reason)
    _check_scope(model, strategy)


def check_targets(model: Any, batch_spec: Any, method: str) -> None:
    """Refuse data without targets, where the loss that a model is compiled with needs them."""
    if not model.loss or has_own(model, method) or has_own(model, "compute_loss"):
        return
    _, y, _ = unpacked(batch_spec)
    if y is None:
        remedy = "Pass y, or yield (x, y); for validation, pass validation_data=(x, y)"
        raise DataError("the data", "have no targets, and the loss compares with them", remedy=remedy)


def check_states(model: Any, strategy: tf.distribute.Strategy) -> None:
    """Refuse a recurrent layer that continues from the batch before, which another replica may have had."""
    if is_alone(strategy):
        return
    for layer in layers_of(model):
        if isinstance(layer, keras_of(model).layers.RNN) and layer.stateful:
            problem = "is stateful: each sequence continues that of the batch before, and workers have others"
            raise ConfigError(
                f"layer {layer.name}", problem, remedy="Train on one_device, or leave stateful out"
            )


def _check_scope(model: Any, strategy: tf.distribute.Strategy) -> None:
    """Refuse a model whose variables were made under another strategy, or under none."""
    if not model.built:
        return
    variables = model.variables if is_keras_2(model) else [part.value for part in parts_of(model.variables)]
    is_own = strategy.extended.variable_created_in_scope
    if not all(is_own(variable) for variable in variables if isinstance(variable, _VARIABLES)):
        made_in = getattr(model, "distribute_strategy", strategy)
        problem = f"was made under {type(made_in).__name__}" if made_in is not strategy else ""
        remedy = "Make and compile it within `with strategy.scope():`"
        problem = problem or "has variables that were made outside of the strategy's scope"
        raise ConfigError(f"model {model.name}", problem, remedy=remedy)


def _check_methods(model: Any, strategy: tf.distribute.Strategy) -> None:
    """Refuse a custom step where its results would be wrong."""
    for name in ("make_train_function", "make_test_function"):
        if has_own(model, name):
            problem = f"overrides {name}, which tfdist does not call"
            raise ConfigError(f"model {model.name}", problem, remedy="Override train_step and test_step")
    own = [name for name in ("train_step", "test_step") if has_own(model, name)]
    if own and isinstance(strategy, ON_SERVERS) and is_keras_2(model):
        problem = f"overrides {own[0]}, in which workers would overwrite each other's counts on the ps"
        remedy = "Take Keras 3, or mirrored or multi_worker_mirrored"
        raise ConfigError(f"model {model.name}", problem, remedy=remedy)


def _check_loss(model: Any) -> None:
    """Refuse losses whose reductions replicas cannot combine."""
    known = {"sum", "mean"} | (set() if is_keras_2(model) else {"mean_with_sample_weight", "none"})
    names = reductions(model)
    are_combined = len(names) == 1 or not (is_keras_2(model) or "none" in names)
    if names - known or (names and not are_combined):
        problem = f"reduces over the batch by {' and '.join(sorted(names))}"
        remedy = "Use one reduction for all outputs: sum_over_batch_size, or sum"
        raise ConfigError("loss", problem, remedy=remedy)


def _check_added_losses(model: Any) -> None:
    """Refuse penalties beside losses without a reduction, which Keras 3 cannot add up either."""
    if is_keras_2(model) or has_own(model, "compute_loss") or reductions(model) != {"none"}:
        return
    if model.losses:
        problem = "has no reduction, but regularizers or layers add losses to it, which are one number each"
        raise ConfigError("loss", problem, remedy="Use reduction='sum', whose gradients are the same")


def _check_optimizer(model: Any, strategy: tf.distribute.Strategy) -> None:
    """Refuse options that asynchronous workers or several replicas do not support."""
    if is_keras_2(model) or model.optimizer is None:
        return
    check_optimizer(model.optimizer, strategy)
    if any(getattr(variable, "overwrite_with_gradient", False) for variable in model.trainable_variables):
        problem = "is quantized to float8, whose scales several replicas cannot average"
        raise ConfigError(f"model {model.name}", problem, remedy="Compute in mixed_bfloat16")


def check_optimizer(optimizer: Any, strategy: tf.distribute.Strategy) -> None:
    """Refuse options of an optimizer of Keras 3 that asynchronous workers do not support."""
    remedies = {
        "gradient_accumulation_steps": "take larger batches",
        "ema_overwrite_frequency": "leave it out: use_ema alone puts the averages in place at the end",
    }
    for option, remedy in remedies.items():
        having = [each for each in (optimizer, *optimizers_within(optimizer)) if getattr(each, option, None)]
        if is_asynchronous(strategy) and having:
            problem = f"has {option}, which counts steps, and workers take several at the same time"
            raise ConfigError("optimizer", problem, remedy=f"Take parameter_server_sync, or {remedy}")
