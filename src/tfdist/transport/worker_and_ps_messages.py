"""Describe which arrays travel together from one task to another, and encode and decode them."""

import functools
import hashlib
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tfdist._utils.indices_by_key import indices_by_key
from tfdist.transport.compression import Narrow, Narrowing
from tfdist.transport.listen_and_call import ExchangeError
from tfdist.transport.tensor_fusion import Fusion

Array = np.ndarray[Any, Any]
_PLAIN, _COMPRESSED, IN_SHARED_MEMORY, WITH_MANIFEST, FORGET = range(5)  # forms of a message
_SINGLE = np.dtype(np.float32)
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


class ReceiveBuffers(NamedTuple):
    """The memory that a message is received into.

    Attributes:
        form: The form of the message.
        buffers: The buffers to fill, in order.
        arrays: The arrays of the manifest.
        single: The array that contains all 32-bit ones, if there are any.
        payload: The compressed form of that, if the message has it.
    """

    form: int
    buffers: list[Array]
    arrays: list[Array]
    single: Array | None
    payload: Narrow | None


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
        self._places_by_dtype = indices_by_key(dtypes)
        self._fusions = {
            dtype: Fusion(dtype, tuple(manifest.shapes[place] for place in places))
            for dtype, places in self._places_by_dtype.items()
        }
        is_narrow = manifest.wire_type != "float32" and _SINGLE in self._places_by_dtype
        self._narrowing = Narrowing(manifest.wire_type) if is_narrow else None
        self.may_be_shared = manifest.may_share and not is_narrow
        self._sends_differences = is_narrow and manifest.is_state and manifest.wire_type == "int8"
        self._peer_values: Array | None = None  # the values at the other end

    def load(self, arrays: Sequence[Array]) -> tuple[int, list[Array]]:
        """Return the form in which the arrays are sent, and the bytes to send."""
        if self._narrowing is None:
            return _PLAIN, [_bytes(array) for array in arrays]
        others = self._others(arrays)
        whole = self._fusions[_SINGLE].fused([arrays[place] for place in self._places_by_dtype[_SINGLE]])
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

    def buffers(self, form: int, memory: Array | None = None) -> ReceiveBuffers:
        """Return buffers for a message in this form, or the views of it in shared memory."""
        arrays: list[Any] = [None] * len(self._manifest.shapes)
        single, end = None, 0
        for dtype, fusion in self._fusions.items():
            if memory is None:
                whole = fusion.empty()
            else:
                whole = fusion.whole_of(memory[end : end + fusion.bytes])
                end += fusion.bytes
            for place, part in zip(self._places_by_dtype[dtype], fusion.parts(whole), strict=True):
                arrays[place] = part
            single = whole if dtype == _SINGLE else single
        if form != _COMPRESSED or self._narrowing is None or single is None:
            return ReceiveBuffers(form, [_bytes(array) for array in arrays], arrays, single, None)
        payload = self._narrowing.loaded(single, keeps=False)
        return ReceiveBuffers(form, [_bytes(payload.wire), *self._others(arrays)], arrays, single, payload)

    def received(self, filled: ReceiveBuffers) -> list[Array]:
        """Return the arrays of a message whose buffers are filled."""
        with np.errstate(all="ignore"):  # the training reports NaN
            if filled.payload is not None:
                filled.payload.unload()
            if self._sends_differences and filled.single is not None:
                self._add_difference(filled.form, filled.single)
        return filled.arrays

    def _add_difference(self, form: int, received: Array) -> None:
        if form == WITH_MANIFEST:
            self._peer_values = received.copy()
        elif self._peer_values is None:
            raise ExchangeError("received a difference before the values that it refers to")
        else:
            self._peer_values += received
            np.copyto(received, self._peer_values)

    def _others(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the bytes of the arrays that are not compressed."""
        places = self._places_by_dtype[_SINGLE]
        return [_bytes(array) for place, array in enumerate(arrays) if place not in places]

    @property
    def footprint(self) -> int:
        """Return how many bytes all arrays take in the layout that TensorFlow uses without a copy."""
        return sum(fusion.bytes for fusion in self._fusions.values())

    def copy_to(self, arrays: Sequence[Array], memory: Array) -> None:
        """Copy arrays into shared memory."""
        for place, target in enumerate(self.buffers(IN_SHARED_MEMORY, memory).arrays):
            np.copyto(target, arrays[place])


def _bytes(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)


def _numpy_type(name: str) -> np.dtype[Any]:
    import tensorflow as tf  # here: modules that only read the secret load no TensorFlow

    # Not NumPy's own type of that name: several libraries register a bfloat16, each its own.
    dtype: np.dtype[Any] = np.dtype(tf.as_dtype(name).as_numpy_dtype)
    return dtype
