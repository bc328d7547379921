"""Fetch once, for many batches, what stands still on parameter servers while a model is tested."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.loop.shards import parts_of, put_together

__all__ = ["Standing", "read_whole"]


class Standing:
    """Hold variables of Keras 3 that are fetched whole, and nothing changes meanwhile."""

    def __init__(self, variables: Sequence[Any]) -> None:
        self._variables = list(variables)

    def fetch(self) -> list[tf.Tensor]:
        """Give their values, as tensors of the task whose graph this is."""
        return [
            put_together([tf.identity(part.value) for part in parts_of([each])]) for each in self._variables
        ]

    def nothing(self) -> list[tf.Tensor]:
        """Give what has the shapes of the values, for as long as these are not there."""
        return [
            tf.raw_ops.Empty(shape=list(each.shape), dtype=tf.as_dtype(each.dtype))
            for each in self._variables
        ]

    def pairs(self, values: Sequence[tf.Tensor]) -> list[tuple[Any, tf.Tensor]]:
        """Give the variables with their values, as `keras.StatelessScope` takes them."""
        return list(zip(self._variables, values, strict=True))


def read_whole(variables: Sequence[Any], compute: Callable[[Any], Any], spec: Any) -> list[Any]:
    """Say which variables are read as a whole, by what is computed of a batch in a graph that is thrown away.

    Of what is read by rows, all the others would be sent too. What is read in a branch, or in a function that
    the graph calls, is not found.

    Args:
        variables: Of Keras 3.
        compute: What needs them, and gives tensors.
        spec: Of the batch.
    """
    graph = tf.function(compute, autograph=False).get_concrete_function(spec).graph
    # Keras reads the whole of what it then reads by rows, and drops that.
    needed: set[Any] = set()
    left = [each.op for each in graph.outputs]
    while left:
        operation = left.pop()
        if operation not in needed:
            needed.add(operation)
            left += [each.op for each in operation.inputs]
    reads = {each.inputs[0].name for each in needed if each.type == "ReadVariableOp"}
    read = {id(outer) for outer, inner in graph.captures if inner.name in reads}
    return [each for each in variables if all(id(part.value.handle) in read for part in parts_of([each]))]
