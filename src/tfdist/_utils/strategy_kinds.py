"""Tell of which kind a strategy is, one of TensorFlow's own or one derived from it."""

from typing import Any

import tensorflow as tf


def is_asynchronous(strategy: Any) -> bool:
    """Return whether workers apply their gradients on parameter servers without waiting for each other."""
    return isinstance(strategy, tf.distribute.ParameterServerStrategy)


def has_mirrored_workers(strategy: Any) -> bool:
    """Return whether workers, which may be one, have copies of the variables and exchange gradients."""
    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
