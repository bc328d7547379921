"""Copy the chief's state of the random generators of Python, NumPy and PyTorch to all workers."""

import random
import struct
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

# Of Python's generator, and of NumPy's: its words; where it is in them; and the next normal number, if any.
_STATE = struct.Struct("!625I Id 624I I Id")
_BYTES_OF_TORCH = 5056  # of its generator for the CPU; zeros where PyTorch is not imported


def share_random_state(add_up: Callable[[Sequence[float]], Sequence[float]], *, is_chief: bool) -> None:
    """Copy the state of `random`, `numpy.random` and `torch` from the chief; all workers must call it.

    Helpers such as `keras.utils.image_dataset_from_directory` draw a seed of their own in each process.
    A `torch.utils.data.DataLoader` shuffles by PyTorch's generator, which is copied if both workers have
    imported it. Workers with different seeds would divide different orders of the data. A state that is the
    same on all workers does not change.

    Args:
        add_up: Returns the sums of the workers' numbers, exact up to 24 bits.
        is_chief: Whether this is the worker whose state the others copy.
    """
    halves = np.frombuffer(_state() + _state_of_torch(), ">u2").tolist()
    sums = add_up([float(half) if is_chief else 0.0 for half in halves])
    if not is_chief:
        state = np.rint(sums).astype(">u2").tobytes()
        _set(state[: _STATE.size])
        _set_torch(state[_STATE.size :])


def _state() -> bytes:
    """Return the state of the generators of Python and NumPy."""
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


def _state_of_torch() -> bytes:
    torch: Any = sys.modules.get("torch")
    state = b"" if torch is None else torch.get_rng_state().numpy().tobytes()
    return state if len(state) == _BYTES_OF_TORCH else bytes(_BYTES_OF_TORCH)


def _set_torch(state: bytes) -> None:
    torch: Any = sys.modules.get("torch")
    if torch is not None and any(state):
        torch.set_rng_state(torch.from_numpy(np.frombuffer(state, np.uint8).copy()))
