"""Find out from a traced graph whether a batch only adds to a state.

A metric whose `update_state` only adds to its variables can be counted in parts, in any order. Keras does not
record which metrics do so; the graph shows it, if each operation between the old value and the new one is
known to keep this property.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.training.replicas.graph_queries import KEEPS_STATE, followed, passed_on


def only_added_to(pairs: Sequence[tuple[Any, tf.Tensor]]) -> list[bool]:
    """Return for each state whether a batch only adds to it, and reads it for no other state.

    Args:
        pairs: For each state, the new tensor, or None where it is not written, and the old one, of the graph
            that is being built.
    """
    sums_of_states = [_sums_of(old) for _, old in pairs]
    names = [old.name if new is None else tf.convert_to_tensor(new).name for new, old in pairs]
    # Each state that depends on another one, with that one.
    dependent = {
        (place, other)
        for place, name in enumerate(names)
        for other, sums in enumerate(sums_of_states)
        if other != place and name in sums
    }
    return [
        _is_sum(new, old, sums) and not any(place in both for both in dependent)
        for place, ((new, old), sums) in enumerate(zip(pairs, sums_of_states, strict=True))
    ]


def adds_one(new: Any, old: tf.Tensor) -> bool:
    """Return whether a batch adds the number 1 to a state, whatever its examples are."""
    if new is None or new is old:
        return False
    operation = passed_on(tf.convert_to_tensor(new), KEEPS_STATE).op
    others = [tensor for tensor in operation.inputs if tensor is not old]
    if operation.type not in ("Add", "AddV2") or len(others) != 1:
        return False
    added = tf.get_static_value(others[0])
    return added is not None and bool(np.all(added == 1))


def _is_sum(new: Any, old: tf.Tensor, sums: dict[str, bool]) -> bool:
    if new is None or new is old:
        return True
    new = tf.convert_to_tensor(new)
    return sums.get(new.name, False) and bool(new.shape.is_compatible_with(old.shape))


def _sums_of(old: tf.Tensor) -> dict[str, bool]:
    """Return the name of each tensor that depends on one, and whether it is this one plus something."""
    return followed([old], old.graph, _keeps)


def _keeps(operation: tf.Operation, depends: list[bool]) -> bool:
    """Return whether an operation's output is its input that depends on the old value, plus something."""
    kind, inputs = operation.type, list(operation.inputs)
    if kind in KEEPS_STATE:
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
