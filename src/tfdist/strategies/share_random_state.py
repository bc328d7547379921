"""Copy the chief's state of Python's and NumPy's random generators to all workers."""

import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

# Of Python's generator, and of NumPy's: its words; where it is in them; and the next normal number, if any.
_STATE = struct.Struct("!625I Id 624I I Id")


def share_random_state(add_up: Callable[[Sequence[float]], Sequence[float]], *, is_chief: bool) -> None:
    """Copy the state of `random` and `numpy.random` from the chief; all workers must call it.

    Helpers such as `keras.utils.image_dataset_from_directory` draw a seed of their own in each process.
    Workers with different seeds would divide different orders of the data. A state that is the same on all
    workers does not change.

    Args:
        add_up: Returns the sums of the workers' numbers, exact up to 24 bits.
        is_chief: Whether this is the worker whose state the others copy.
    """
    halves = np.frombuffer(_state(), ">u2").tolist()
    sums = add_up([float(half) if is_chief else 0.0 for half in halves])
    if not is_chief:
        _set(np.rint(sums).astype(">u2").tobytes())


def _state() -> bytes:
    """Return the state of both generators."""
    _, of_python, normal = random.getstate()
    state: Any = np.random.get_state(legacy=True)
    _, of_numpy, position, has_normal, cached = state
    is_there = normal is not None
    return _STATE.pack(*of_python, is_there, normal or 0.0, *of_numpy.tolist(), position, has_normal, cached)


def _set(state: bytes) -> None:
    values = _STATE.unpack(state)
    of_python, (is_there, normal), of_numpy = values[:625], values[625:627], values[627:1251]
    random.setstate((random.getstate()[0], of_python, normal if is_there else None))
    np.random.set_state(("MT19937", np.array(of_numpy, np.uint32), *values[1251:]))
