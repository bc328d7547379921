"""Copy the chief's state of Python's and NumPy's random generators to all workers."""

import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

_HALF = 1 << 16


def share_random_state(add_up: Callable[[Sequence[float]], Sequence[float]], *, is_chief: bool) -> None:
    """Copy the state of `random` and `numpy.random` from the chief; all workers must call it.

    Helpers such as `keras.utils.image_dataset_from_directory` draw a seed of their own in each process.
    Workers with different seeds would divide different orders of the data. A state that is the same on all
    workers does not change.

    Args:
        add_up: Returns the sums of the workers' numbers, exact up to 24 bits.
        is_chief: Whether this is the worker whose state the others copy.
    """
    halves = [part for word in _words() for part in divmod(word, _HALF)]
    sums = [round(total) for total in add_up([float(half) if is_chief else 0.0 for half in halves])]
    words = [high * _HALF + low for high, low in zip(sums[::2], sums[1::2], strict=True)]
    if not is_chief:
        _set(words)


def _words() -> list[int]:
    """Return the state of both generators as 32-bit numbers."""
    _, of_python, gauss = random.getstate()
    state: Any = np.random.get_state(legacy=True)
    _, of_numpy, position, has_gauss, cached = state
    return [
        *of_python,
        *_of_float(gauss),
        *map(int, of_numpy),
        position,
        *_of_float(cached if has_gauss else None),
    ]


def _set(words: list[int]) -> None:
    version, of_python, _ = random.getstate()
    count = len(of_python)
    random.setstate((version, tuple(words[:count]), _to_float(words[count : count + 3])))
    rest = words[count + 3 :]
    cached = _to_float(rest[625:])
    keys = np.array(rest[:624], np.uint32)
    np.random.set_state(("MT19937", keys, rest[624], int(cached is not None), cached or 0.0))


def _of_float(value: float | None) -> list[int]:
    """Return whether there is a value, and its 64 bits in two words."""
    bits = int.from_bytes(struct.pack("!d", value or 0.0), "big")
    return [int(value is not None), *divmod(bits, 1 << 32)]


def _to_float(words: Sequence[int]) -> float | None:
    is_there, high, low = words
    value: float
    [value] = struct.unpack("!d", ((high << 32) + low).to_bytes(8, "big"))
    return value if is_there else None
