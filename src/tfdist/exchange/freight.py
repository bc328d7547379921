"""Say what travels together from one task to another, and put it in the form in which it travels."""

import functools
import hashlib
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tfdist.exchange.lines import Broken
from tfdist.exchange.memory import Fusion
from tfdist.exchange.narrowing import Narrowing

__all__ = ["ON_SHELF", "Freight", "Manifest", "Room", "read_manifest"]

Array = np.ndarray[Any, Any]
_WHOLE, _NARROW, ON_SHELF = range(3)
_MARK_BYTES = 8


class Manifest(NamedTuple):
    """Name the arrays that travel together; both ends read the same one.

    Attributes:
        name: Which one it is, of all that the chief has made.
        server: Between the workers and which parameter server they travel.
        dtypes: The arrays' types.
        shapes: The arrays' shapes.
        wire_type: What numbers of 32 bits travel as.
        is_state: Whether they are the same variables again and again, of which the differences may travel.
        is_in_step: Whether the servers need each worker, or go on without one that is silent.
        may_share: Whether they may go by memory that both ends see, if these are on one machine.
        timeout: Seconds that a transfer may stand still; any number where None.
    """

    name: str
    server: int
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    wire_type: str
    is_state: bool
    is_in_step: bool
    may_share: bool
    timeout: float | None

    def written(self) -> bytes:
        """Give it as text."""
        return json.dumps(self).encode()

    @property
    def mark(self) -> bytes:
        """Give what stands for it in a header."""
        return _mark_of(self)


@functools.lru_cache(maxsize=256)
def _mark_of(manifest: Manifest) -> bytes:
    return hashlib.sha256(manifest.written()).digest()[:_MARK_BYTES]


@functools.lru_cache(maxsize=256)
def read_manifest(text: bytes) -> Manifest:
    """Read a manifest."""
    name, server, dtypes, shapes, *others = json.loads(text)
    return Manifest(name, server, tuple(dtypes), tuple(map(tuple, shapes)), *others)


class Freight:
    """Bring what a manifest names into its form, or out of it, again and again, at one end of one line.

    What goes in 8 bits goes with care. Of gradients, what was rounded away is kept and added to the next
    ones. Variables would not bear that: a weight that is off by a step of its block is another model. So what
    travels of them is how they differ from what the other end has, and what is rounded away is a part of the
    next difference.

    Attributes:
        mark: What stands for the manifest in a header.
        may_lie: Whether it may be left in memory that both ends see: as it is, for none of that is sent.
    """

    def __init__(self, manifest: Manifest) -> None:
        self._manifest, self.mark = manifest, manifest.mark
        dtypes = [_numpy_type(name) for name in manifest.dtypes]
        self._places = {
            dtype: [place for place, each in enumerate(dtypes) if each == dtype]
            for dtype in dict.fromkeys(dtypes)
        }
        self._fusions = {
            dtype: Fusion(dtype, tuple(manifest.shapes[place] for place in places))
            for dtype, places in self._places.items()
        }
        narrowed = np.dtype(np.float32)
        is_narrow = manifest.wire_type != "float32" and narrowed in self._places
        self._narrowing = Narrowing(manifest.wire_type) if is_narrow else None
        self.may_lie = manifest.may_share and not is_narrow
        self._differs = is_narrow and manifest.is_state and manifest.wire_type == "int8"
        self._known: Array | None = None  # what the other end has

    def load(self, arrays: Sequence[Array]) -> tuple[int, list[Array]]:
        """Give the form in which arrays go, and the bytes that do."""
        if self._narrowing is None:
            return _WHOLE, [_bytes(each) for each in arrays]
        single = np.dtype(np.float32)
        places = self._places[single]
        others = [_bytes(each) for place, each in enumerate(arrays) if place not in places]
        whole = self._fusions[single].fused([arrays[place] for place in places])
        with np.errstate(all="ignore"):  # what is not a number is for the training to see
            if not self._differs:
                cargo = self._narrowing.loaded(whole)
                cargo.load(0, len(cargo.wire))
                return _NARROW, [_bytes(cargo.wire), *others]
            difference = whole if self._known is None else whole - self._known
            # What has no difference, or not yet, goes as it is.
            if self._known is None or not np.isfinite(difference).all():
                self._known = whole.copy()
                return _WHOLE, [_bytes(each) for each in arrays]
            cargo = self._narrowing.loaded(difference, keeps=False)
            cargo.load(0, len(cargo.wire))
            cargo.unload()
            self._known += difference
        return _NARROW, [_bytes(cargo.wire), *others]

    def room(self, form: int, memory: Array | None = None) -> "Room":
        """Give room for what comes in a form, or the room where it lies."""
        return Room(self, form, memory)

    @property
    def footprint(self) -> int:
        """Say how many bytes it takes for all arrays to lie as TensorFlow takes them over."""
        return sum(each.bytes for each in self._fusions.values())

    def lay_out(self, arrays: Sequence[Array], memory: Array) -> None:
        """Copy arrays to where they will lie."""
        for place, each in enumerate(self.room(ON_SHELF, memory).arrays()):
            np.copyto(each, arrays[place])


class Room:
    """Hold what comes.

    Attributes:
        buffers: Where it goes, in order.
    """

    def __init__(self, freight: Freight, form: int, memory: Array | None) -> None:
        self._freight, self._form = freight, form
        self._wholes, end = {}, 0
        for dtype, fusion in freight._fusions.items():
            if memory is None:
                self._wholes[dtype] = fusion.empty()
            else:
                self._wholes[dtype] = fusion.whole_of(memory[end : end + fusion.bytes])
                end += fusion.bytes
        self._arrays: list[Any] = [None] * len(freight._manifest.shapes)
        for dtype, places in freight._places.items():
            for place, part in zip(places, freight._fusions[dtype].parts(self._wholes[dtype]), strict=True):
                self._arrays[place] = part
        narrowing, single = freight._narrowing, np.dtype(np.float32)
        if form != _NARROW or narrowing is None:
            self.buffers = [_bytes(each) for each in self._arrays]
        else:
            self._cargo = narrowing.loaded(self._wholes[single], keeps=False)
            others = [each for place, each in enumerate(self._arrays) if place not in freight._places[single]]
            self.buffers = [_bytes(self._cargo.wire), *map(_bytes, others)]

    def arrays(self) -> list[Array]:
        """Give the arrays, now that all has come."""
        freight = self._freight
        if self._form == _NARROW:
            self._cargo.unload()
        if freight._differs:
            whole = self._wholes[np.dtype(np.float32)]
            if self._form == _WHOLE:
                freight._known = whole.copy()
            elif freight._known is None:
                raise Broken("a difference came from what was never there")
            else:
                freight._known += whole
                np.copyto(whole, freight._known)
        return self._arrays


def _bytes(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)


def _numpy_type(name: str) -> np.dtype[Any]:
    import tensorflow as tf  # here, for what hands secrets out loads none

    # Not NumPy's own view of the name: several libraries may have made a bfloat16, and each its own.
    found: np.dtype[Any] = np.dtype(tf.as_dtype(name).as_numpy_dtype)
    return found
