"""Fetch variables from parameter servers once for many batches, while a model is tested."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.training.keras.sharded_variables import parts_of, put_together

__all__ = ["PsCache", "read_whole"]


class PsCache:
    """A cache of Keras 3 variables that a worker fetches whole, and that nothing changes meanwhile."""

    def __init__(self, variables: Sequence[Any]) -> None:
        self._variables = list(variables)

    def fetch(self) -> list[tf.Tensor]:
        """Return the variables' values, as tensors of the task that runs this graph."""
        return [
            put_together([tf.identity(part.value) for part in parts_of([variable])])
            for variable in self._variables
        ]

    def uninitialized(self) -> list[tf.Tensor]:
        """Return uninitialized tensors in the shapes of the values, to use before the first fetch."""
        return [
            tf.raw_ops.Empty(shape=list(variable.shape), dtype=tf.as_dtype(variable.dtype))
            for variable in self._variables
        ]

    def pairs(self, values: Sequence[tf.Tensor]) -> list[tuple[Any, tf.Tensor]]:
        """Return the variables with their values, as `keras.StatelessScope` takes them."""
        return list(zip(self._variables, values, strict=True))


def read_whole(variables: Sequence[Any], compute: Callable[[Any], Any], spec: Any) -> list[Any]:
    """Return the variables that a computation reads whole, from a graph that is traced and thrown away.

    A variable that is read by rows is left out: a fetch would send all its other rows too. Reads in a branch,
    or in a function that the graph calls, are not found.

    Args:
        variables: Variables of Keras 3.
        compute: A function of a batch that reads the variables and returns tensors.
        spec: The spec of the batch.
    """
    graph = tf.function(compute, autograph=False).get_concrete_function(spec).graph
    # Before Keras reads a variable by rows, it reads the whole variable and does not use that value.
    needed: set[Any] = set()
    left = [output.op for output in graph.outputs]
    while left:
        operation = left.pop()
        if operation not in needed:
            needed.add(operation)
            left += [tensor.op for tensor in operation.inputs]
    reads = {operation.inputs[0].name for operation in needed if operation.type == "ReadVariableOp"}
    read = {id(outer) for outer, inner in graph.captures if inner.name in reads}
    return [
        variable
        for variable in variables
        if all(id(part.value.handle) in read for part in parts_of([variable]))
    ]
