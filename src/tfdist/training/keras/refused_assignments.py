"""Refuse in a line that a layer assigns to a variable of TensorFlow's own, which replicas cannot share."""

import contextlib
import re
from collections.abc import Iterator
from typing import Any

from tfdist.errors import ConfigError

__all__ = ["assignments_refused"]

# What TensorFlow says of an assignment that all replicas make, in a branch for those that have examples.
_MERGED_IN_A_BRANCH = "`merge_call` called while defining a new graph"
_LAYER = re.compile(r"calling (\w+)\.call\(\)")


@contextlib.contextmanager
def assignments_refused(model: Any) -> Iterator[None]:
    """Name the layer that assigns to a tf.Variable, while replicas call the model in a graph.

    tfdist knows what the replicas write to variables of Keras, and combines it; it does not see this.

    Raises:
        ConfigError: A layer does.
    """
    try:
        yield
    except RuntimeError as error:
        if _MERGED_IN_A_BRANCH not in str(error):
            raise
        layer = _LAYER.search(str(error))
        where = f"model {model.name}" if layer is None else f"layer {layer[1]}"
        problem = "assigns to a tf.Variable while it is called, which replicas cannot share"
        remedy = "Make the variable by self.add_weight(..., trainable=False)"
        raise ConfigError(where, problem, remedy=remedy) from error
