"""Refuse layers that assign to a tf.Variable while they are called, which replicas could not share."""

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfdist._utils.temporary_patches import methods_replaced
from tfdist._utils.tf_private import ASSIGNMENTS, SHARED_VARIABLES
from tfdist.errors import ConfigError
from tfdist.training.keras.stateless_scopes import IN_BRANCH

_ASSIGNS = "assigns to a tf.Variable while it is called, which replicas cannot share"
_IN_BRANCH = re.compile(rf"writes .+ {IN_BRANCH}")
_LAYER = re.compile(r"calling (\w+)\.call\(\)")  # in what Keras makes of an error


@contextlib.contextmanager
def assignments_refused(model: Any) -> Iterator[None]:
    """Name the layer that assigns to a tf.Variable, while several replicas call the model.

    tfdist knows what the replicas write to variables of Keras, and combines it; TensorFlow would take the
    mean of the replicas' values, however many examples each has.

    Raises:
        ConfigError: A layer assigns to a tf.Variable, or writes where replicas cannot share the value.
    """

    def refused(original: Callable[..., Any], _: Any, *args: Any, **kwargs: Any) -> Any:
        if tf.distribute.in_cross_replica_context() or tf.distribute.get_strategy().num_replicas_in_sync == 1:
            return original(*args, **kwargs)
        raise RuntimeError(_ASSIGNS)

    methods = [(kind, name, refused) for kind in SHARED_VARIABLES for name in ASSIGNMENTS]
    try:
        with methods_replaced(methods):
            yield
    except RuntimeError as error:
        layer, write = _LAYER.search(str(error)), _IN_BRANCH.search(str(error))
        if write is None and _ASSIGNS not in str(error):
            raise
        where = f"model {model.name}" if layer is None else f"layer {layer[1]}"
        if write is not None:
            has_xla = getattr(model, "jit_compile", False)
            remedy = f"Write it outside{', leave jit_compile out' if has_xla else ''}, or train on one_device"
            raise ConfigError(where, write[0], remedy=remedy) from error
        remedy = "Make the variable by self.add_weight(..., trainable=False)"
        raise ConfigError(where, _ASSIGNS, remedy=remedy) from error
