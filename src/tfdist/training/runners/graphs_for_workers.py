"""Make the graphs of executions that the coordinator sends to workers, and pack their results.

Each tensor in a result costs chief and worker a call, so the numbers travel as one tensor.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.coordination.end_stalled_workers import WorkerExecutions
from tfdist.training.data.sent_execution import ORDER_SPEC, Execution, opened_order
from tfdist.training.parameter_servers.applied_steps import AppliedSteps

_FIT_INTO_FLOAT64 = (tf.float64, tf.float32, tf.int32)
_MOST_NUMBERS = 1024  # in a tensor: in 64 bits a large one costs more than a call


class WorkerGraph:
    """The graph of an execution on a worker.

    Attributes:
        function: The graph.
        executions: How long its executions take.
        applied: Where its steps are noted; None if they update nothing.
    """

    def __init__(self, execution: Callable[..., Any], applied: AppliedSteps | None = None) -> None:
        """Make the graph.

        Args:
            execution: A function of an iterator, a number of steps and what was begun of them. It returns the
                steps taken, their result, and the seconds that it waited for data.
            applied: Where its steps are noted; None if they update nothing.
        """
        self._execution, self.executions, self.applied = execution, WorkerExecutions(), applied
        self._results = PackedResults()
        self.function = tf.function(self.execute, autograph=False)

    def new_execution(self, wanted: int, call: int) -> Execution:
        """Return a new execution of a number of steps, in the epoch of this number."""
        return Execution(wanted, self.applied, call=call, unpacked=self._results.unpacked)

    def execute(self, iterator: Any, order: tf.Tensor) -> Any:
        """Execute steps, in a graph that the coordinator sends to a worker with an order."""
        steps, begun = opened_order(order)
        return self._results.packed(self._execution(iterator, steps, begun))


class GraphsOfBatches(WorkerGraph):
    """The graphs of an execution, for each number of batches that the chief sends with it."""

    def __init__(self, execution: Callable[..., Any], applied: AppliedSteps | None = None) -> None:
        super().__init__(execution, applied)
        self._graphs: dict[tuple[int, str], Any] = {}

    def of(self, count: int, spec: Any) -> Any:
        """Return the graph of an execution on a number of batches of a spec."""
        key = count, repr(spec)
        if key not in self._graphs:
            self._graphs[key] = self._made(count, spec)
        return self._graphs[key]

    def _made(self, count: int, spec: Any) -> Any:
        parts = tf.nest.flatten(spec, expand_composites=True)

        def execute_on(batches: Any, order: tf.Tensor) -> Any:
            data: list[Any] = [
                tf.data.Dataset.from_tensors(tf.nest.pack_sequence_as(spec, batch, expand_composites=True))
                for batch in batches
            ]
            joined: Any = functools.reduce(lambda first, second: first.concatenate(second), data)
            _, begun = opened_order(order)
            joined = joined.skip(tf.cast(begun.done, tf.int64))
            return self.execute(iter(joined), order)

        signature: list[Any] = [[parts] * count, ORDER_SPEC]
        return tf.function(execute_on, autograph=False, input_signature=signature)


class PackedResults:
    """The results of one graph, which TensorFlow may trace several times."""

    def __init__(self) -> None:
        # For each trace, its result with the spec of each tensor that is packed, and None for what is not.
        self._traces: list[Any] = []

    def packed(self, result: Any) -> tuple[tf.Tensor, list[Any]]:
        """Return, in the graph, a vector of all numbers in small tensors; and what else there is."""
        specs = tf.nest.map_structure(_spec_if_packed, result)
        numbers, others = [tf.constant([len(self._traces)], tf.float64)], []  # the number of the trace first
        for part, spec in zip(tf.nest.flatten(result), tf.nest.flatten(specs), strict=True):
            if spec is None:
                others.append(part)
            else:
                numbers.append(tf.reshape(tf.cast(part, tf.float64), [-1]))
        self._traces.append(specs)
        return tf.concat(numbers, 0), others

    def unpacked(self, fetched: tuple[Any, Sequence[Any]]) -> Any:
        """Return a result that was fetched, its numbers as arrays."""
        vector, others = np.asarray(fetched[0]), iter(fetched[1])
        specs = self._traces[int(vector[0])]
        values, start = [], 1
        for spec in tf.nest.flatten(specs):
            if spec is None:
                values.append(next(others))
                continue
            stop = start + spec.shape.num_elements()
            numbers = vector[start:stop].astype(spec.dtype.as_numpy_dtype)
            values.append(numbers.reshape(spec.shape.as_list()))
            start = stop
        return tf.nest.pack_sequence_as(specs, values)


def _spec_if_packed(part: Any) -> tf.TensorSpec | None:
    if not isinstance(part, tf.Tensor) or part.dtype not in _FIT_INTO_FLOAT64:
        return None
    size = part.shape.num_elements()
    return tf.TensorSpec(part.shape, part.dtype) if size is not None and size <= _MOST_NUMBERS else None
