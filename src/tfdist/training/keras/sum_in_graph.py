"""Find out from a graph whether a tensor is an earlier tensor plus something independent of it.

A metric whose `update_state` only adds to its variables can be counted in parts, in any order. Keras does not
record which metrics do so. The graph shows it, if each operation between the old value and the new one is
known to keep this property.
"""

from typing import Any

import tensorflow as tf

__all__ = ["is_sum_of"]

_PASSES_ON = (
    "Identity", "EnsureShape", "StopGradient", "PreventGradient", "Snapshot", "CheckNumerics", "Reshape",
)  # fmt: skip


def is_sum_of(new: Any, old: tf.Tensor) -> bool:
    """Return whether `new` is `old` plus something; both are tensors of the graph that is being built."""
    if new is None or new is old:
        return True
    new = tf.convert_to_tensor(new)
    # Maps each tensor that depends on the old one to whether it is the old one plus something.
    is_sum = {old.name: True}
    for operation in old.graph.get_operations():  # in the order in which they were made
        depends = [tensor.name in is_sum for tensor in operation.inputs]
        if any(depends):
            are_sums = [is_sum.get(tensor.name, False) for tensor in operation.inputs]
            keeps = are_sums == depends and _keeps(operation, depends)
            is_sum.update({tensor.name: keeps for tensor in operation.outputs})
    return is_sum.get(new.name, False) and bool(new.shape.is_compatible_with(old.shape))


def _keeps(operation: tf.Operation, depends: list[bool]) -> bool:
    """Return whether an operation's output is its input that depends on the old value, plus something."""
    kind, inputs = operation.type, list(operation.inputs)
    if kind in _PASSES_ON:
        return depends[0] and not any(depends[1:])
    if kind == "Cast":
        into, out_of = operation.outputs[0].dtype, inputs[0].dtype
        return bool(into.is_floating or (into.is_integer and out_of.is_integer))
    if kind in ("Add", "AddV2", "AddN", "Sub"):
        # The other inputs must not broadcast the sum to another shape.
        place = depends.index(True)
        has_shape = inputs[place].shape.as_list() == operation.outputs[0].shape.as_list()
        return has_shape and sum(depends) == 1 and (kind != "Sub" or place == 0)
    if kind in ("Select", "SelectV2"):
        return depends == [False, True, True]
    if kind in ("TensorScatterAdd", "TensorScatterSub"):
        return depends == [True, False, False]
    return False
