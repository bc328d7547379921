"""Adam for large embeddings: rows without a gradient keep their moments and their weights."""

from typing import Any

import tensorflow as tf

from tfdist._utils.keras_private import adam_slots
from tfdist.errors import ConfigError
from tfdist.training.parameter_servers.sharded_keras_variables import read_rows


@tf.keras.utils.register_keras_serializable(package="tfdist")
class LazyAdam(tf.keras.optimizers.Adam):  # type: ignore[misc]  # Keras ships no types
    """Keras's Adam, except for the rows of an embedding that a batch does not read.

    Adam lets the moments of all rows decay in each step, and goes over the whole table. LazyAdam changes only
    the rows that have a gradient. If a batch reads a row several times, it adds these gradients up. Dense
    weights are updated as by Adam. It has the arguments of Adam.
    """

    only_rows_with_gradient = True

    def __init__(self, *args: Any, **options: Any) -> None:
        """Create the optimizer from the arguments of Keras's Adam."""
        if tf.keras.__version__ < "3":
            raise ConfigError("LazyAdam", expected="Keras 3", received=f"Keras {tf.keras.__version__}")
        super().__init__(*args, **options)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update one variable by its gradient."""
        if not isinstance(gradient, tf.IndexedSlices):
            super().update_step(gradient, variable, learning_rate)
            return
        if self.amsgrad:
            raise ConfigError(
                "LazyAdam", "has amsgrad, which is not supported for embeddings", remedy="Leave it out"
            )
        dtype = variable.dtype
        beta_1, beta_2 = tf.cast(self.beta_1, dtype), tf.cast(self.beta_2, dtype)  # which round, as in Keras
        step = tf.cast(self.iterations.value, dtype) + 1
        rate = tf.cast(learning_rate, dtype) * tf.sqrt(1 - beta_2**step) / (1 - beta_1**step)
        rows, places = tf.unique(gradient.indices)
        values = tf.math.unsorted_segment_sum(tf.cast(gradient.values, dtype), places, tf.size(rows))
        momentum, velocity = adam_slots(self, variable)
        new_momentum = _moved(momentum, rows, values, self.beta_1)
        new_velocity = _moved(velocity, rows, tf.square(values), self.beta_2)
        change = rate * new_momentum / (tf.sqrt(new_velocity) + tf.constant(self.epsilon, dtype))
        variable.scatter_sub(tf.IndexedSlices(change, rows))


def _moved(slot: Any, rows: tf.Tensor, values: tf.Tensor, beta: float) -> tf.Tensor:
    """Move rows of a moving average towards values, and return them."""
    before = read_rows(slot, rows)
    change = (values - before) * tf.constant(1 - beta, before.dtype)
    slot.scatter_add(tf.IndexedSlices(change, rows))
    return before + change
