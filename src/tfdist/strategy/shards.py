"""Cut large variables in shards along their first axis: several parameter servers then hold one variable."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

__all__ = ["Cutter", "Sharded"]

_VALUE = "VARIABLE_VALUE"  # the name that a variable's value has in a checkpoint


class Sharded(tf.__internal__.distribute.ShardedVariable):  # type: ignore[misc]
    """Be one variable to Keras, and several to TensorFlow.

    TensorFlow's own class lacks what Keras 3 asks a variable for: to be an array, and to be saved as a value.
    Its `sparse_read` gives rows in the order of the shards, and not in that of the indices.
    """

    def __array__(self, dtype: Any = None) -> Any:
        value = self.numpy()
        return value if dtype is None else value.astype(dtype)

    def sparse_read(self, indices: Any, name: str | None = None) -> tf.Tensor:
        """Read some rows, from the shards that hold them."""
        return tf.nn.embedding_lookup(list(self.variables), indices, name=name)

    def _serialize_to_tensors(self) -> dict[str, tf.Tensor]:
        # The same checkpoint as without shards: it can be taken up with any number of them.
        return {_VALUE: tf.convert_to_tensor(self)}

    def _restore_from_tensors(self, restored: dict[str, tf.Tensor]) -> Any:
        return self.assign(restored[_VALUE])


class Cutter:
    """Make large variables in shards; a creator of variables for `tf.variable_creator_scope`.

    TensorFlow's partitioners say into how many; this is TensorFlow's own way to cut, for strategies and
    versions of Keras that it does not serve.
    """

    def __init__(self, *, min_shard_bytes: int | None, max_shards: int) -> None:
        least = 256 << 10 if min_shard_bytes is None else min_shard_bytes
        self._partition = tf.distribute.experimental.partitioners.MinSizePartitioner(least, max_shards)
        self._is_cutting = False

    def __call__(self, next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        """Make a variable, in shards where it is large enough."""
        # A slot of an optimizer is beside its shard. A scope may be entered within itself.
        if self._is_cutting or "colocate_with" in kwargs or kwargs.get("initial_value") is None:
            return next_creator(**kwargs)
        initial = kwargs["initial_value"]
        with tf.init_scope():
            value = tf.convert_to_tensor(initial() if callable(initial) else initial, kwargs.get("dtype"))
        kwargs["initial_value"] = value
        shards = self._partition(value.shape, value.dtype)[0] if value.shape.rank else 1
        self._is_cutting = True
        try:
            if shards < 2:
                return next_creator(**kwargs)
            return Sharded(
                self._parts(next_creator, value, shards, kwargs), name=kwargs.get("name") or "Sharded"
            )
        finally:
            self._is_cutting = False

    @staticmethod
    def _parts(
        next_creator: Callable[..., Any], value: tf.Tensor, shards: int, kwargs: dict[str, Any]
    ) -> list[Any]:
        rows, more = divmod(value.shape[0], shards)
        sizes = [rows + (index < more) for index in range(shards)]  # as embedding_lookup finds them again
        name = kwargs.get("name") or "Variable"
        return [
            next_creator(
                **{**kwargs, "initial_value": part, "shape": part.shape, "name": f"{name}/part_{index}"}
            )
            for index, part in enumerate(tf.split(value, sizes))
        ]
