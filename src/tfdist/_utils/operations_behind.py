"""Walk back through a graph, from tensors to the operations that they are computed by."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf


def operations_behind(
    tensors: Iterable[tf.Tensor],
    until: Callable[[tf.Operation], bool] = lambda _: False,
    *,
    are_outer: bool = False,
) -> Iterator[tf.Operation]:
    """Yield the operations that tensors are computed by, back to operations at which to stop.

    If `are_outer`, they may be in the graphs around the one of the tensors.
    """
    seen, waiting = set(), [tensor.op for tensor in tensors]
    while waiting:
        operation = waiting.pop()
        if operation not in seen:
            seen.add(operation)
            yield operation
            if not until(operation):
                waiting += [tensor.op for tensor in operation.inputs]
                if are_outer and operation.type == "Placeholder":
                    outer = captured(operation.outputs[0])
                    waiting += [] if outer is None or hasattr(outer, "numpy") else [outer.op]


def captured(tensor: Any) -> Any:
    """Return the tensor of an outer graph that one of a function's graph stands for; else None."""
    is_eager = hasattr(tensor, "numpy")
    captures = () if is_eager else getattr(tensor.graph, "captures", ())
    return next((outer for outer, inner in captures if inner is tensor), None)
