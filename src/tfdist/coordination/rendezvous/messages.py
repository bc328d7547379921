"""The messages of the rendezvous: one line of JSON from the lead, one from the task that it calls."""

import socket
import time
from typing import Annotated

import msgspec
from msgspec import Meta

CLUSTER = "the cluster"  # the name of its mark

MOST_BYTES = 1 << 16  # the longest line
LONGEST_REASON = 200  # characters
SECONDS_TO_SPEAK = 5.0
# msgspec's errors for a line that is no such message; its MsgspecError does not cover invalid UTF-8.
MALFORMED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

_Name = Annotated[str, Meta(max_length=64)]
Marks = Annotated[dict[_Name, _Name], Meta(max_length=64)]  # a hash for each name


class Call(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="call"):
    """A message of the lead: its marks, the task it calls, who is missing and why, and who takes part."""

    marks: Marks
    task: _Name
    missing: dict[_Name, Annotated[str, Meta(max_length=LONGEST_REASON)]]
    start: list[_Name]


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="answer"):
    """A message of another task: its marks and its name."""

    marks: Marks
    task: _Name


class Refused(Exception):
    """The process at an address is not the task that was called."""


def exchange(connection: socket.socket, call: Call) -> None:
    """Call a task; raise Refused unless that task answers."""
    connection.sendall(msgspec.json.encode(call) + b"\n")
    reply = _read_line(connection)
    if not reply:
        raise Refused("closes the connection")
    try:
        answer = msgspec.json.decode(reply, type=Answer)
    except MALFORMED:
        # The reply begins as an HTTP/2 server's does: with the header of a SETTINGS frame.
        is_grpc = reply[3:9] == b"\x04\x00\x00\x00\x00\x00"
        problem = (
            "still runs TensorFlow's server of an earlier start" if is_grpc else "is not a task of tfdist"
        )
        raise Refused(problem) from None
    if answer.marks != call.marks:
        raise Refused(f"is a task of {difference(call.marks, answer.marks)}")
    if answer.task != call.task:
        raise Refused("is another task of this cluster")


def difference(mine: Marks, theirs: Marks) -> str:
    """Return how the cluster of another task differs from this task's, given that their marks do."""
    if mine.get(CLUSTER) != theirs.get(CLUSTER):
        return "another cluster"
    names = [name for name in mine if mine[name] != theirs.get(name)]
    return f"this cluster, but with another {' and another '.join(names) or 'configuration'}"


def _read_line(connection: socket.socket) -> bytes:
    """Read until the end of the line, of the connection or of the time; return what has come."""
    received, deadline = b"", time.monotonic() + SECONDS_TO_SPEAK
    while b"\n" not in received and len(received) < MOST_BYTES and time.monotonic() < deadline:
        try:
            more = connection.recv(4096)
        except TimeoutError:
            if not received:
                raise TimeoutError("accepts connections and does not answer") from None
            break
        if not more:
            break
        received += more
    return received
