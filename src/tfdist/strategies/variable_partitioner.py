"""Cut large variables into shards along their first axis, so that several parameter servers share one."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist._utils.temporary_patches import attributes_set
from tfdist._utils.tf_private import ShardedVariableSavedAsOne, colocates_with_first_shard


class Sharded(ShardedVariableSavedAsOne):
    """A variable that is one variable to Keras, and several shards to TensorFlow.

    TensorFlow's own class lacks two abilities that Keras 3 needs: conversion to an array, and saving as one
    value. Its `sparse_read` returns rows in the order of the shards, not of the indices.
    """

    def __array__(self, dtype: Any = None) -> Any:
        value = self.numpy()
        return value if dtype is None else value.astype(dtype)

    def sparse_read(self, indices: Any, name: str | None = None) -> tf.Tensor:
        """Read some rows, from the shards that hold them."""
        return tf.nn.embedding_lookup(list(self.variables), indices, name=name)

    @property
    def device(self) -> str:
        """Return the device of the first shard, where an optimizer computes the update of the whole."""
        return str(self.variables[0].device)

    def whole_gradient(self, gradients: list[Any]) -> Any:
        """Return the gradient of the whole variable from those of its shards; None if all are None."""
        if all(gradient is None for gradient in gradients):
            return None
        pairs = list(zip(gradients, self.variables, strict=True))
        if any(isinstance(gradient, tf.Tensor) for gradient in gradients):
            return tf.concat([_dense(gradient, shard) for gradient, shard in pairs], axis=0)
        begin, values, indices = 0, [], []
        for gradient, shard in pairs:
            if gradient is not None:
                values.append(gradient.values)
                indices.append(gradient.indices + tf.cast(begin, gradient.indices.dtype))
            begin += shard.shape[0]
        return tf.IndexedSlices(tf.concat(values, axis=0), tf.concat(indices, axis=0), self.shape)


def _dense(gradient: Any, shard: Any) -> tf.Tensor:
    return tf.zeros(shard.shape, shard.dtype) if gradient is None else tf.convert_to_tensor(gradient)


colocates_with_first_shard(Sharded)


class Partitioner:
    """A creator for `tf.variable_creator_scope` that makes large variables in shards.

    One of TensorFlow's partitioners chooses the number of shards. This class then cuts as TensorFlow does,
    also under strategies and versions of Keras for which TensorFlow does not cut.
    """

    def __init__(self, *, min_shard_bytes: int | None, max_shards: int) -> None:
        least = 256 << 10 if min_shard_bytes is None else min_shard_bytes
        self._partition = tf.distribute.experimental.partitioners.MinSizePartitioner(least, max_shards)
        self._is_cutting = False

    def __call__(self, next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        """Make a variable, in shards where it is large enough."""
        # In a loop of the user's own, an optimizer's slot variable belongs to a whole variable.
        whole = kwargs.get("colocate_with")
        if isinstance(whole, Sharded) and not self._is_cutting:
            return self._beside(whole, next_creator, kwargs)
        # Otherwise it belongs to a shard already. A nested scope calls this creator again.
        if self._is_cutting or "colocate_with" in kwargs or kwargs.get("initial_value") is None:
            return next_creator(**kwargs)
        value = kwargs["initial_value"] = _initial_value(kwargs)
        shards = self._partition(value.shape, value.dtype)[0] if value.shape.rank else 1
        with attributes_set(self, _is_cutting=True):
            if shards < 2:
                return next_creator(**kwargs)
            return Sharded(
                self._parts(next_creator, value, shards, kwargs), name=kwargs.get("name") or "Sharded"
            )

    def _beside(self, whole: Sharded, next_creator: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
        """Make a slot variable beside the shards of a variable; beside the first if it has another shape."""
        value = _initial_value(kwargs)
        is_alike = value.shape == whole.shape
        values = tf.split(value, [shard.shape[0] for shard in whole.variables]) if is_alike else [value]
        with attributes_set(self, _is_cutting=True):
            parts = [
                next_creator(**{**kwargs, "initial_value": part, "shape": part.shape, "colocate_with": shard})
                for part, shard in zip(values, whole.variables, strict=False)
            ]
        return Sharded(parts, name=kwargs.get("name") or "Sharded") if is_alike else parts[0]

    @staticmethod
    def _parts(
        next_creator: Callable[..., Any], value: tf.Tensor, shards: int, kwargs: dict[str, Any]
    ) -> list[Any]:
        rows, more = divmod(value.shape[0], shards)
        sizes = [rows + (index < more) for index in range(shards)]  # as embedding_lookup expects
        name = kwargs.get("name") or "Variable"
        return [
            next_creator(
                **{**kwargs, "initial_value": part, "shape": part.shape, "name": f"{name}/part_{index}"}
            )
            for index, part in enumerate(tf.split(value, sizes))
        ]


def _initial_value(kwargs: dict[str, Any]) -> tf.Tensor:
    """Return the initial value of a variable, outside of a graph."""
    initial = kwargs["initial_value"]
    with tf.init_scope():
        return tf.convert_to_tensor(initial() if callable(initial) else initial, kwargs.get("dtype"))
