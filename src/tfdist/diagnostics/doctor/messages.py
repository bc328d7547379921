"""Send and receive the messages between the doctors of two tasks: short JSON of a fixed form, and bytes."""

import struct
import time
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from tfdist.transport.authentication import Connection
from tfdist.transport.listen_and_call import read_exactly

__all__ = [
    "MOST_BULK",
    "Bulk",
    "Clock",
    "End",
    "Facts",
    "Link",
    "LinkError",
    "Measure",
    "Measured",
    "Received",
    "Request",
    "Time",
]

MOST_BULK = 64 << 20  # bytes that may be asked for at once
_MOST_BYTES = 1 << 14  # of a message
_LENGTH = struct.Struct("!I")
_SECONDS = 10.0  # for a message, or for all bytes of a bulk
_PIECE = 1 << 18

_Short = Annotated[str, Meta(max_length=64)]
_Path = Annotated[str, Meta(max_length=2048)]
_NotNegative = Annotated[float, Meta(ge=0, le=1e15)]
_Count = Annotated[int, Meta(ge=0, le=1 << 50)]
_T = TypeVar("_T")


class Facts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="facts"):
    """What a doctor knows of its own host: the first message of each end.

    Attributes:
        task: Its task in the cluster.
        cluster: The fingerprint of its cluster.
        config: The digest of its config; empty without one.
        data: The fingerprint of its data; empty without them.
        folder: Where its data are.
        any_port: A port that the system has chosen for it, on which it listens; 0 if it cannot.
        measures: Whether it takes part in measuring.
        examples_per_second: How fast it trains alone; 0 if unknown.
    """

    task: _Short
    cluster: _Short
    python: _Short = ""
    tensorflow: _Short = ""
    keras: _Short = ""
    tfdist: _Short = ""
    config: _Short = ""
    data: _Short = ""
    folder: _Path = ""
    any_port: Annotated[int, Meta(ge=0, le=65535)] = 0
    measures: bool = False
    examples_per_second: _NotNegative = 0.0


class Clock(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="clock"):
    """Ask for the time."""


class Time(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="time"):
    """Answer with the seconds since 1970."""

    seconds: _NotNegative


class Bulk(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="bulk"):
    """Announce so many bytes, which follow."""

    count: Annotated[int, Meta(ge=1, le=MOST_BULK)]


class Received(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="received"):
    """Confirm that all bytes have come."""


class Measure(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="measure"):
    """Ask for the speed from the called task to another one."""

    task: _Short


class Measured(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="measured"):
    """Answer with bytes per second and the seconds of a round trip, or with the reason why there are none."""

    bytes_per_second: _NotNegative = 0.0
    round_trip: _NotNegative = 0.0
    problem: Annotated[str, Meta(max_length=300)] = ""


class End(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="end"):
    """Tell that all is measured."""


Request = Clock | Bulk | Measure | End


class LinkError(Exception):
    """The other end is gone, too slow, or sends what is no such message."""


class Link:
    """A proven connection between two doctors."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        connection.settimeout(_SECONDS)

    def __enter__(self) -> "Link":
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def send(self, message: msgspec.Struct) -> None:
        """Send a message."""
        data = msgspec.json.encode(message)
        try:
            self._connection.sendall(_LENGTH.pack(len(data)) + data)
        except OSError as error:
            raise LinkError(str(error)) from error

    def receive(self, type_: type[_T], *, seconds: float = _SECONDS) -> _T:
        """Receive a message of this type; with a tagged union, of one of its types."""
        deadline = time.monotonic() + seconds
        try:
            [length] = _LENGTH.unpack(read_exactly(self._connection, _LENGTH.size, deadline))
            if length > _MOST_BYTES:
                raise LinkError(f"sends a message of {length} bytes")
            return msgspec.json.decode(read_exactly(self._connection, length, deadline), type=type_)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise LinkError(str(error)) from error

    def send_bulk(self, count: int) -> None:
        """Send so many zeros."""
        piece = bytes(_PIECE)
        try:
            for begin in range(0, count, _PIECE):
                self._connection.sendall(piece[: count - begin])
        except OSError as error:
            raise LinkError(str(error)) from error

    def receive_bulk(self, count: int) -> None:
        """Receive so many bytes, and forget them."""
        room, deadline = bytearray(_PIECE), time.monotonic() + _SECONDS
        try:
            while count > 0:
                if time.monotonic() > deadline:
                    raise LinkError("sends too slowly")
                came = self._connection.recv_into(room, min(count, _PIECE))
                if not came:
                    raise LinkError("closes the connection")
                count -= came
        except OSError as error:
            raise LinkError(str(error)) from error
