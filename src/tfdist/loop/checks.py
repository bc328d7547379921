"""Refuse a model that cannot be trained as it asks to be, before anything runs."""

from typing import Any

import tensorflow as tf

from tfdist.errors import ConfigError
from tfdist.loop.generations import is_keras_2, keras_of

__all__ = ["check_model", "reductions"]


def check_model(model: Any, strategy: tf.distribute.Strategy, *, is_coordinated: bool) -> None:
    """Refuse a model that is not compiled, is of another scope, or overrides what is not called."""
    base = keras_of(model).Model
    if not getattr(model, "compiled", False) and not getattr(model, "_is_compiled", False):
        raise ConfigError("model", "is not compiled", remedy="Call model.compile(optimizer, loss, …) first")
    for name in ("train_step", "test_step"):
        if getattr(type(model), name) is not getattr(base, name):
            problem = f"has a {name} of its own, which says how one replica trains, not how several share it"
            remedy = "Override call, compute_loss or compute_metrics, or write a loop around strategy.run"
            raise ConfigError(f"model {model.name}", problem, remedy=remedy)
    if not is_keras_2(model) and any(
        type(each.value).__name__ == "ShardedVariable" for each in model.variables
    ):
        problem = "has a variable in shards, which Keras 3 cannot train"
        remedy = "Leave out min_shard_bytes and max_shards, or use Keras 2"
        raise ConfigError(f"model {model.name}", problem, remedy=remedy)
    if is_keras_2(model) and getattr(model, "_jit_compile", None):
        raise ConfigError("jit_compile", "is for Keras 3 models", remedy="Leave it out of compile")
    if strategy.num_replicas_in_sync > 1 or is_coordinated:
        _check_optimizer(model)
    unknown = reductions(model) - {"sum", "mean"}
    if strategy.num_replicas_in_sync > 1 and (unknown or len(reductions(model)) > 1):
        problem = f"reduces over the batch by {' and '.join(sorted(reductions(model)))}"
        remedy = (
            "Several replicas share one loss that is a mean over the batch (sum_over_batch_size), or a sum"
        )
        raise ConfigError("loss", problem, remedy=remedy)
    if is_coordinated and model.run_eagerly:
        raise ConfigError(
            "run_eagerly", "cannot be: remote workers run graphs", remedy="Leave it out of compile"
        )
    made_in = getattr(model, "distribute_strategy", strategy)
    if model.built and made_in is not strategy and tf.distribute.get_strategy() is not strategy:
        problem = f"was made under {type(made_in).__name__}"
        remedy = "Make and compile it within `with strategy.scope():`"
        raise ConfigError(f"model {model.name}", problem, remedy=remedy)


def reductions(model: Any) -> set[str]:
    """Say how the losses that a model is compiled with make one number out of a batch."""
    names = {
        str(getattr(each, "reduction", "mean")) for each in tf.nest.flatten(model.loss) if each is not None
    }
    return {"mean" if name in ("auto", "sum_over_batch_size", "mean") else name for name in names}


def _check_optimizer(model: Any) -> None:
    """Refuse what Keras 3's optimizers do in a branch of the graph, where replicas cannot meet."""
    if is_keras_2(model) or model.optimizer is None:
        return
    remedies = {
        "gradient_accumulation_steps": "Take larger batches, or more replicas",
        "ema_overwrite_frequency": "Leave it out: use_ema alone puts the averages in place at the end",
    }
    for option, remedy in remedies.items():
        if getattr(model.optimizer, option, None):
            problem = f"has {option}, which Keras 3 cannot do with several replicas"
            raise ConfigError("optimizer", problem, remedy=remedy)
    if hasattr(model.optimizer, "inner_optimizer"):
        problem = "scales the loss, which Keras 3 cannot do with several replicas"
        raise ConfigError("optimizer", problem, remedy="Compute in mixed_bfloat16, which needs no scaling")
