"""Add up what replicas write to a variable that is their sum, where it exists once for all of them.

Keras 3 adds to such a variable, a metric's, by assigning its value and the addend. Where each replica has a
variable of its own, the sum of all is right. Of one variable, each replica would write its whole value.
"""

from typing import Any

import tensorflow as tf

from tfdist._utils.operations_behind import captured, operations_behind


def add_up_assignments(variable: Any) -> None:
    """Make replicas that assign to a variable what they compute from its value add the differences up."""
    assign = variable.assign

    def assign_or_add(value: Any, *args: Any, **kwargs: Any) -> Any:
        if tf.distribute.in_cross_replica_context() or not _is_computed_from(value, variable):
            return assign(value, *args, **kwargs)
        return variable.assign_add(tf.convert_to_tensor(value) - tf.convert_to_tensor(variable))

    variable.assign = assign_or_add


def _is_computed_from(value: Any, variable: Any) -> bool:
    """Return whether a value depends on that of a variable; outside a graph, any but zero counts as such."""
    if not tf.is_tensor(value):
        return False
    if tf.executing_eagerly():
        return bool(tf.reduce_any(value != 0))
    reads = (each for each in operations_behind([value], are_outer=True) if each.type == "ReadVariableOp")
    return any(_is_handle(read.inputs[0], variable) for read in reads)


def _is_handle(tensor: Any, variable: Any) -> bool:
    while (outer := captured(tensor)) is not None:
        tensor = outer
    return tensor is variable.handle
