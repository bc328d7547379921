"""Call the doctor of another task, and exchange messages with it: short JSON of a fixed form, and bytes."""

import contextlib
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from tfdist.cluster.addresses_and_free_ports import split_address
from tfdist.cluster.config import ClusterConfig, Task
from tfdist.coordination.rendezvous.messages import MALFORMED
from tfdist.transport.authentication import Connection, Proofs
from tfdist.transport.listen_and_call import call, read_exactly

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
_MARK = b"tfdist doctor 1"
_SECONDS_TO_CONNECT = 3.0
_ROUND_TRIPS = 8


class Facts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="facts"):
    """The facts about a doctor's own host: the first message of each end.

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
        with _as_link_error():
            self._connection.sendall(_LENGTH.pack(len(data)) + data)

    def receive(self, type_: type[_T], *, seconds: float = _SECONDS) -> _T:
        """Receive a message of this type; with a tagged union, of one of its types."""
        deadline = time.monotonic() + seconds
        with _as_link_error():
            [length] = _LENGTH.unpack(read_exactly(self._connection, _LENGTH.size, deadline))
            if length > _MOST_BYTES:
                raise LinkError(f"sends a message of {length} bytes")
            return msgspec.json.decode(read_exactly(self._connection, length, deadline), type=type_)

    def send_bulk(self, count: int) -> None:
        """Send so many zeros."""
        piece = bytes(_PIECE)
        with _as_link_error():
            for begin in range(0, count, _PIECE):
                self._connection.sendall(piece[: count - begin])

    def receive_bulk(self, count: int) -> None:
        """Receive so many bytes, and forget them."""
        room, deadline = bytearray(_PIECE), time.monotonic() + _SECONDS
        with _as_link_error():
            while count > 0:
                if time.monotonic() > deadline:
                    raise LinkError("sends too slowly")
                came = self._connection.recv_into(room, min(count, _PIECE))
                if not came:
                    raise LinkError("closes the connection")
                count -= came


@contextlib.contextmanager
def _as_link_error() -> Iterator[None]:
    try:
        yield
    except (OSError, *MALFORMED) as error:
        raise LinkError(str(error)) from error


def proofs_of(secret: bytes | None) -> Proofs:
    """Return the proofs of a secret; without one, everybody can make them."""
    return Proofs(secret or b"", _MARK)


def ends_of(cluster: ClusterConfig, called: Task) -> bytes:
    """Return what a proof is bound to besides the secret: the task that is called."""
    return struct.pack("!I", cluster.tasks().index(called))


@dataclass(frozen=True)
class Participant:
    """This task, among the tasks whose doctors meet.

    Attributes:
        cluster: The cluster.
        task: This task.
        secret: What all of them know.
        facts: What this task says of its host.
        clock: Returns the time of this host.
    """

    cluster: ClusterConfig
    task: Task
    secret: bytes | None
    facts: Facts
    clock: Callable[[], float] = time.time

    def call(self, other: Task) -> tuple[Link, Facts]:
        """Call the doctor of another task, exchange proofs and facts, and return the connection.

        Raises:
            ConnectError: It cannot be reached, or does not know the same secret.
            LinkError: It sends something else.
        """
        address = split_address(self.cluster.address(other))
        ends, proofs = ends_of(self.cluster, other), proofs_of(self.secret)
        connection = call(address, ends, proofs, _SECONDS_TO_CONNECT)
        link = Link(connection)
        try:
            link.send(self.facts)
            return link, link.receive(Facts)
        except LinkError:
            connection.close()
            raise


def round_trips(link: Link, clock: Callable[[], float] = time.time) -> tuple[float, float]:
    """Return the seconds of the fastest round trip, and by how much the other clock is ahead."""
    results = []
    for _ in range(_ROUND_TRIPS):
        began, then = clock(), time.perf_counter()
        link.send(Clock())
        theirs = link.receive(Time).seconds
        taken = time.perf_counter() - then
        results.append((taken, theirs - (began + taken / 2)))
    return min(results)
