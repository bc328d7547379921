"""Fetch variables from parameter servers once for all batches of a call that tests or predicts."""

import itertools
import secrets
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist._utils.operations_behind import operations_behind
from tfdist.training.parameter_servers.sharded_keras_variables import parts_of, put_together

_NO_CALL = -1
# Not from 0: a worker may outlive its chief, and must not take its copies for those of the next one's calls.
_calls = itertools.count(secrets.randbits(62))


def new_call() -> int:
    """Return the number of a new call, during which nothing changes the variables that are cached."""
    return next(_calls)


class PsCache:
    """A worker's own copies of Keras 3 variables that a step reads whole, kept for the batches of a call."""

    def __init__(self, variables: Sequence[Any]) -> None:
        self._variables = list(variables)
        self._name = f"tfdist_copies_{secrets.token_hex(8)}"

    @classmethod
    def for_step(
        cls, variables: Sequence[Any], run: Callable[[Any], tuple[Any, list[Any]]], spec: Any
    ) -> "PsCache":
        """Return the cache of those variables that a step reads whole and does not write.

        Args:
            variables: The variables that it may read.
            run: A function of a batch that returns tensors, and the variables that the step writes.
            spec: The spec of the batch.
        """
        written: set[int] = set()

        def computed(batch: Any) -> Any:
            tensors, variables = run(batch)
            written.update(map(id, variables))
            return tensors

        read = _read_whole(variables, computed, spec)
        return cls([variable for variable in read if id(variable) not in written])

    def values(self, call: tf.Tensor) -> list[tf.Tensor]:
        """Return, in a graph on a worker, the values in a call: the copies, or what is fetched now."""
        if not self._variables:
            return []
        handles = self._handles()
        are_there = tf.reduce_all([tf.raw_ops.VarIsInitializedOp(resource=handle) for handle in handles])
        are_of_call, copies = tf.cond(are_there, lambda: self._copies(handles, call), self._no_copies)
        found: list[tf.Tensor] = tf.cond(are_of_call, lambda: copies, lambda: self._fetched(handles, call))
        for value, variable in zip(found, self._variables, strict=True):
            value.set_shape(variable.shape)
        return found

    def forget(self) -> tf.Operation:
        """Free the copies, in a graph on a worker."""
        destroy = tf.raw_ops.DestroyResourceOp
        return tf.group(*(destroy(resource=each, ignore_lookup_error=True) for each in self._handles()))

    def uninitialized(self) -> list[tf.Tensor]:
        """Return uninitialized tensors in the shapes of the values, to use before they are known."""
        return [
            tf.raw_ops.Empty(shape=list(variable.shape), dtype=tf.as_dtype(variable.dtype))
            for variable in self._variables
        ]

    def pairs(self, values: Sequence[tf.Tensor]) -> list[tuple[Any, tf.Tensor]]:
        """Return the variables with their values, as `keras.StatelessScope` takes them."""
        return list(zip(self._variables, values, strict=True))

    def _handles(self) -> list[tf.Tensor]:
        """Return the handles of the copies, and last that of the number of the call that they are of."""
        kinds = [(variable.dtype, list(variable.shape)) for variable in self._variables] + [("int64", [])]
        return [
            tf.raw_ops.VarHandleOp(dtype=tf.as_dtype(dtype), shape=shape, shared_name=f"{self._name}_{index}")
            for index, (dtype, shape) in enumerate(kinds)
        ]

    def _copies(self, handles: Sequence[tf.Tensor], call: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Return whether the copies are those of a call, and the copies."""
        read = tf.raw_ops.ReadVariableOp
        *copies, number = handles
        pairs = zip(copies, self._variables, strict=True)
        values = [read(resource=copy, dtype=tf.as_dtype(variable.dtype)) for copy, variable in pairs]
        # Afterwards: a worker that was stopped in an earlier call may continue now, and write.
        with tf.control_dependencies(values):
            return tf.equal(read(resource=number, dtype=tf.int64), call), values

    def _no_copies(self) -> tuple[tf.Tensor, list[tf.Tensor]]:
        return tf.constant(False), self.uninitialized()

    def _fetched(self, handles: Sequence[tf.Tensor], call: tf.Tensor) -> list[tf.Tensor]:
        """Return the values that the servers have, and keep them."""
        values = [
            put_together([tf.identity(part.value) for part in parts_of([variable])])
            for variable in self._variables
        ]
        *copies, number = handles
        with tf.control_dependencies(values):
            kept = tf.raw_ops.AssignVariableOp(resource=number, value=tf.constant(_NO_CALL, tf.int64))
        with tf.control_dependencies([kept]):
            pairs = zip(copies, values, strict=True)
            kept = tf.group(
                *(tf.raw_ops.AssignVariableOp(resource=copy, value=value) for copy, value in pairs)
            )
        with tf.control_dependencies([kept]):
            kept = tf.raw_ops.AssignVariableOp(resource=number, value=call)
        with tf.control_dependencies([kept]):
            return [tf.identity(value) for value in values]


def _read_whole(variables: Sequence[Any], compute: Callable[[Any], Any], spec: Any) -> list[Any]:
    """Return the variables that a computation reads whole, from a graph that is traced and thrown away.

    A variable that is read by rows is left out: a fetch would send all its other rows too. Reads in a branch,
    or in a function that the graph calls, are not found.
    """
    graph = tf.function(compute, autograph=False).get_concrete_function(spec).graph
    # Before Keras reads a variable by rows, it reads the whole variable and does not use that value.
    needed = operations_behind(graph.outputs)
    reads = {operation.inputs[0].name for operation in needed if operation.type == "ReadVariableOp"}
    read = {id(outer) for outer, inner in graph.captures if inner.name in reads}
    return [
        variable
        for variable in variables
        if all(id(part.value.handle) in read for part in parts_of([variable]))
    ]
