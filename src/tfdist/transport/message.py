"""Describe which arrays travel together from one task to another, and encode and decode them."""

import functools
import hashlib
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tfdist._utils.group_by_key import places_by_key
from tfdist.transport.compression import Narrowing
from tfdist.transport.listen_and_call import ExchangeError
from tfdist.transport.tensor_fusion import Fusion

Array = np.ndarray[Any, Any]
_PLAIN, _COMPRESSED, IN_SHARED_MEMORY, WITH_MANIFEST, FORGET = range(5)  # forms of a message
_MARK_BYTES = 8


class Manifest(NamedTuple):
    """The arrays that travel together; both ends read the same manifest.

    Attributes:
        name: Which manifest it is, of all that the chief has made.
        server: The parameter server at one end; a worker is at the other.
        dtypes: The arrays' types.
        shapes: The arrays' shapes.
        wire_type: The type in which 32-bit numbers are sent.
        is_state: Whether the arrays are the same variables in every message, so that differences may be
            sent.
        is_in_step: Whether the servers need each worker, or continue without one that is silent.
        may_share: Whether shared memory may be used if both ends are on one machine.
        timeout: Seconds that a transfer may stand still; None for no limit.
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
        """Return the manifest as text."""
        return json.dumps(self).encode()

    @property
    def mark(self) -> bytes:
        """Return the hash that represents the manifest in a header."""
        return _mark_of(self)


@functools.lru_cache(maxsize=256)
def _mark_of(manifest: Manifest) -> bytes:
    return hashlib.sha256(manifest.written()).digest()[:_MARK_BYTES]


@functools.lru_cache(maxsize=256)
def read_manifest(text: bytes) -> Manifest:
    """Return the manifest that a text contains."""
    name, server, dtypes, shapes, *others = json.loads(text)
    return Manifest(name, server, tuple(dtypes), tuple(map(tuple, shapes)), *others)


def read_manifest_sent(text: bytes, mark: bytes) -> Manifest:
    """Return the manifest that came with a message; raise ExchangeError if the text is not its own."""
    if hashlib.sha256(text).digest()[:_MARK_BYTES] != mark:
        raise ExchangeError("received a manifest that is not the message's own")
    return read_manifest(text)


class MessageCodec:
    """Encode and decode, at one end of one channel, the arrays that a manifest names, message after message.

    Compression to 8 bits keeps the rounding errors. For gradients, the codec adds the error to the next
    ones. Variables need more: a weight that is off by one step of its block makes another model. So the
    codec sends how the variables differ from the values at the other end, and the rounding error is part of
    the next difference. Values that differences refer to are sent with their manifest: then the other end can
    keep them, even if it gives up the step before it asks for them.

    Attributes:
        mark: The hash that represents the manifest in a header.
        may_be_shared: Whether the arrays may be left in shared memory, uncompressed.
    """

    def __init__(self, manifest: Manifest) -> None:
        self._manifest, self.mark = manifest, manifest.mark
        dtypes = [_numpy_type(name) for name in manifest.dtypes]
        self._places_by_dtype = places_by_key(dtypes)
        self._fusions = {
            dtype: Fusion(dtype, tuple(manifest.shapes[place] for place in places))
            for dtype, places in self._places_by_dtype.items()
        }
        narrowed = np.dtype(np.float32)
        is_narrow = manifest.wire_type != "float32" and narrowed in self._places_by_dtype
        self._narrowing = Narrowing(manifest.wire_type) if is_narrow else None
        self.may_be_shared = manifest.may_share and not is_narrow
        self._sends_differences = is_narrow and manifest.is_state and manifest.wire_type == "int8"
        self._peer_values: Array | None = None  # the values at the other end

    def load(self, arrays: Sequence[Array]) -> tuple[int, list[Array]]:
        """Return the form in which the arrays are sent, and the bytes to send."""
        if self._narrowing is None:
            return _PLAIN, [_bytes(array) for array in arrays]
        single = np.dtype(np.float32)
        places = self._places_by_dtype[single]
        others = [_bytes(array) for place, array in enumerate(arrays) if place not in places]
        whole = self._fusions[single].fused([arrays[place] for place in places])
        with np.errstate(all="ignore"):  # the training reports NaN
            if not self._sends_differences:
                payload = self._narrowing.loaded(whole)
                payload.load(0, len(payload.wire))
                return _COMPRESSED, [_bytes(payload.wire), *others]
            difference = whole if self._peer_values is None else whole - self._peer_values
            # Without a finite difference, or before there is any, the values themselves are sent.
            if self._peer_values is None or not np.isfinite(difference).all():
                self._peer_values = whole.copy()
                return WITH_MANIFEST, [_bytes(array) for array in arrays]
            payload = self._narrowing.loaded(difference, keeps=False)
            payload.load(0, len(payload.wire))
            payload.unload()
            self._peer_values += difference
        return _COMPRESSED, [_bytes(payload.wire), *others]

    def may_have(self, form: int) -> bool:
        """Return whether the other end may send the arrays in this form."""
        if form == _COMPRESSED:
            return self._narrowing is not None
        return form == (WITH_MANIFEST if self._sends_differences else _PLAIN) or form == IN_SHARED_MEMORY

    def room(self, form: int, memory: Array | None = None) -> "Room":
        """Return buffers for a message in this form, or the views of it in shared memory."""
        return Room(self, form, memory)

    @property
    def footprint(self) -> int:
        """Return how many bytes all arrays take in the layout that TensorFlow uses without a copy."""
        return sum(fusion.bytes for fusion in self._fusions.values())

    def copy_to(self, arrays: Sequence[Array], memory: Array) -> None:
        """Copy arrays into shared memory."""
        for place, target in enumerate(self.room(IN_SHARED_MEMORY, memory).arrays()):
            np.copyto(target, arrays[place])


class Room:
    """The buffers that a message is received into.

    Attributes:
        buffers: The buffers to fill, in order.
    """

    def __init__(self, codec: MessageCodec, form: int, memory: Array | None) -> None:
        self._codec, self._form = codec, form
        self._wholes, end = {}, 0
        for dtype, fusion in codec._fusions.items():
            if memory is None:
                self._wholes[dtype] = fusion.empty()
            else:
                self._wholes[dtype] = fusion.whole_of(memory[end : end + fusion.bytes])
                end += fusion.bytes
        self._arrays: list[Any] = [None] * len(codec._manifest.shapes)
        for dtype, places in codec._places_by_dtype.items():
            for place, part in zip(places, codec._fusions[dtype].parts(self._wholes[dtype]), strict=True):
                self._arrays[place] = part
        narrowing, single = codec._narrowing, np.dtype(np.float32)
        if form != _COMPRESSED or narrowing is None:
            self.buffers = [_bytes(array) for array in self._arrays]
        else:
            self._payload = narrowing.loaded(self._wholes[single], keeps=False)
            others = [
                array
                for place, array in enumerate(self._arrays)
                if place not in codec._places_by_dtype[single]
            ]
            self.buffers = [_bytes(self._payload.wire), *map(_bytes, others)]

    def arrays(self) -> list[Array]:
        """Return the arrays, once all buffers are filled."""
        codec = self._codec
        with np.errstate(all="ignore"):  # the training reports NaN
            if self._form == _COMPRESSED:
                self._payload.unload()
            if codec._sends_differences:
                self._add_difference(codec)
        return self._arrays

    def _add_difference(self, codec: MessageCodec) -> None:
        whole = self._wholes[np.dtype(np.float32)]
        if self._form == WITH_MANIFEST:
            codec._peer_values = whole.copy()
        elif codec._peer_values is None:
            raise ExchangeError("received a difference before the values that it refers to")
        else:
            codec._peer_values += whole
            np.copyto(whole, codec._peer_values)


def _bytes(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)


def _numpy_type(name: str) -> np.dtype[Any]:
    import tensorflow as tf  # here: modules that only read the secret load no TensorFlow

    # Not NumPy's own type of that name: several libraries register a bfloat16, each its own.
    dtype: np.dtype[Any] = np.dtype(tf.as_dtype(name).as_numpy_dtype)
    return dtype
