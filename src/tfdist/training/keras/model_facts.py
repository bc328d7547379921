"""Tell what a model defines itself, how its loss is reduced, and whether XLA compiles its step."""

from typing import Any

import tensorflow as tf

from tfdist._utils.keras_2_and_3 import is_keras_2, keras_of
from tfdist._utils.strategy_kinds import is_asynchronous
from tfdist._utils.tf_private import worker_count
from tfdist.training.replicas.call_synchronized_layers import has_synchronized_layers

_MIRRORED = (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy)
ON_SERVERS = (tf.distribute.ParameterServerStrategy, tf.distribute.experimental.CentralStorageStrategy)


def is_alone(strategy: tf.distribute.Strategy) -> bool:
    """Return whether one replica computes all batches, one after the other."""
    has_other_workers = is_asynchronous(strategy) and worker_count(strategy) > 1
    return strategy.num_replicas_in_sync == 1 and not has_other_workers


def has_own(model: Any, method: str) -> bool:
    """Return whether a model, or its class, overrides a method of Keras's Model."""
    return method in vars(model) or getattr(type(model), method) is not getattr(keras_of(model).Model, method)


def uses_xla(model: Any, strategy: tf.distribute.Strategy) -> bool:
    """Return whether XLA compiles what a replica computes: the model asks for it, and XLA can."""
    return bool(model.jit_compile) and not why_without_xla(model, strategy)


def why_without_xla(model: Any, strategy: tf.distribute.Strategy) -> str:
    """Return why XLA cannot compile a replica's computation; an empty text if it can."""
    if isinstance(strategy, ON_SERVERS):
        return "XLA cannot reach variables on parameter servers"
    own = has_own(model, "train_step") or has_own(model, "test_step")
    if isinstance(strategy, _MIRRORED) and (own or is_keras_2(model)):
        what = "Keras 2" if is_keras_2(model) else "a custom step"
        return f"with {what} it would compile the exchange between replicas too, which XLA cannot do"
    if strategy.num_replicas_in_sync > 1 and has_synchronized_layers(model):
        return "a synchronized layer exchanges values between replicas, which XLA cannot do"
    return ""


def reductions(model: Any) -> set[str]:
    """Return the reductions over a batch of the losses that a model is compiled with."""
    names = {
        str(getattr(loss, "reduction", "mean")).lower()
        for loss in tf.nest.flatten(model.loss)
        if loss is not None
    }
    return {"mean" if name in ("auto", "sum_over_batch_size", "mean") else name for name in names}
