"""Refuse a model that cannot be trained as it asks to be, before anything runs."""

from typing import Any

import tensorflow as tf

from tfdist.errors import ConfigError
from tfdist.loop.generations import is_keras_2, keras_of

__all__ = ["check_model", "has_own", "reductions"]

_MIRRORED = (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy)
_ON_SERVERS = (tf.distribute.ParameterServerStrategy, tf.distribute.experimental.CentralStorageStrategy)


def check_model(model: Any, strategy: tf.distribute.Strategy, *, is_coordinated: bool) -> None:
    """Refuse a model that is not compiled, is of another scope, or overrides what is not called."""
    keras_of(model)  # refuses what is no model
    if not getattr(model, "compiled", False) and not getattr(model, "_is_compiled", False):
        raise ConfigError("model", "is not compiled", remedy="Call model.compile(optimizer, loss, …) first")
    _check_methods(model, strategy)
    if strategy.num_replicas_in_sync > 1 or is_coordinated:
        _check_optimizer(model, is_coordinated=is_coordinated)
    if strategy.num_replicas_in_sync > 1 and not has_own(model, "train_step"):
        _check_loss(model)
    if is_coordinated and model.run_eagerly:
        raise ConfigError(
            "run_eagerly", "cannot be: remote workers run graphs", remedy="Leave it out of compile"
        )
    made_in = getattr(model, "distribute_strategy", strategy)
    if model.built and made_in is not strategy and tf.distribute.get_strategy() is not strategy:
        problem = f"was made under {type(made_in).__name__}"
        remedy = "Make and compile it within `with strategy.scope():`"
        raise ConfigError(f"model {model.name}", problem, remedy=remedy)


def has_own(model: Any, method: str) -> bool:
    """Say whether a model does something in a way of its own, and not as Keras does it."""
    return getattr(type(model), method) is not getattr(keras_of(model).Model, method)


def reductions(model: Any) -> set[str]:
    """Say how the losses that a model is compiled with make one number out of a batch."""
    names = {
        str(getattr(each, "reduction", "mean")) for each in tf.nest.flatten(model.loss) if each is not None
    }
    return {"mean" if name in ("auto", "sum_over_batch_size", "mean") else name for name in names}


def _check_methods(model: Any, strategy: tf.distribute.Strategy) -> None:
    """Refuse steps of a model's own where they cannot be right, and what XLA cannot compile."""
    for name in ("make_train_function", "make_test_function"):
        if has_own(model, name):
            problem = f"has a {name} of its own, which is not called"
            raise ConfigError(f"model {model.name}", problem, remedy="Override train_step and test_step")
    own = [name for name in ("train_step", "test_step") if has_own(model, name)]
    if own and isinstance(strategy, _ON_SERVERS):
        problem = f"has a {own[0]} of its own, in which workers would overwrite each other's counts on the ps"
        remedy = "Take mirrored or multi_worker_mirrored, or override call, compute_loss or compute_metrics"
        raise ConfigError(f"model {model.name}", problem, remedy=remedy)
    if model.jit_compile and isinstance(strategy, _ON_SERVERS):
        problem = "cannot be: XLA does not reach variables that other tasks hold"
        raise ConfigError("jit_compile", problem, remedy="Leave it out of compile")
    if model.jit_compile and isinstance(strategy, _MIRRORED) and (own or is_keras_2(model)):
        what = "Keras 2" if is_keras_2(model) else "a step of its own"
        problem = f"of {what} compiles the update of variables, and XLA cannot reach those of other replicas"
        remedy = "Leave it out of compile, or take one_device"
        raise ConfigError("jit_compile", problem, remedy=remedy)


def _check_loss(model: Any) -> None:
    """Refuse what replicas cannot put together."""
    known = {"sum", "mean"} | (set() if is_keras_2(model) else {"mean_with_sample_weight"})
    found = reductions(model)
    if found - known or len(found) > 1:
        problem = f"reduces over the batch by {' and '.join(sorted(found))}"
        remedy = "Let all outputs have one reduction: sum_over_batch_size, or sum"
        raise ConfigError("loss", problem, remedy=remedy)


def _check_optimizer(model: Any, *, is_coordinated: bool) -> None:
    """Refuse what workers that do not wait for each other cannot do, and what replicas cannot average."""
    if is_keras_2(model) or model.optimizer is None:
        return
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    remedies = {
        "gradient_accumulation_steps": "take larger batches",
        "ema_overwrite_frequency": "leave it out: use_ema alone puts the averages in place at the end",
    }
    for option, remedy in remedies.items():
        if is_coordinated and getattr(optimizer, option, None):
            problem = f"has {option}, which counts steps, and workers do several at the same time"
            raise ConfigError("optimizer", problem, remedy=f"Take parameter_server_sync, or {remedy}")
    if has_own(model, "train_step"):
        branches = [option for option in remedies if getattr(optimizer, option, None)]
        branches += ["dynamic loss scaling"] if optimizer is not model.optimizer else []
        if branches:
            problem = f"has {branches[0]}, which Keras 3 puts into a branch, where replicas cannot meet"
            raise ConfigError("optimizer", problem, remedy="Leave it out, or leave the train_step to Keras")
    if any(getattr(each, "overwrite_with_gradient", False) for each in model.trainable_variables):
        problem = "is quantized to float8, whose scales several replicas cannot average"
        raise ConfigError(f"model {model.name}", problem, remedy="Compute in mixed_bfloat16")
