"""Refuse a model that cannot be trained as it asks to be, before anything runs."""

from typing import Any

import tensorflow as tf

from tfdist.errors import ConfigError
from tfdist.loop.generations import keras_of

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
    unknown = reductions(model) - {"sum", "mean"}
    if strategy.num_replicas_in_sync > 1 and (unknown or len(reductions(model)) > 1):
        problem = f"reduces over the batch by {' and '.join(sorted(reductions(model)))}"
        remedy = "Several replicas share one loss that is a mean over the batch (sum_over_batch_size), or a sum"
        raise ConfigError("loss", problem, remedy=remedy)
    if is_coordinated and model.run_eagerly:
        raise ConfigError("run_eagerly", "cannot be: remote workers run graphs", remedy="Leave it out of compile")
    made_in = getattr(model, "distribute_strategy", strategy)
    if model.built and made_in is not strategy and tf.distribute.get_strategy() is not strategy:
        problem = f"was made under {type(made_in).__name__}"
        remedy = "Make and compile it within `with strategy.scope():`"
        raise ConfigError(f"model {model.name}", problem, remedy=remedy)


def reductions(model: Any) -> set[str]:
    """Say how the losses that a model is compiled with make one number out of a batch."""
    names = {str(getattr(each, "reduction", "mean")) for each in tf.nest.flatten(model.loss) if each is not None}
    return {"mean" if name in ("auto", "sum_over_batch_size", "mean") else name for name in names}
