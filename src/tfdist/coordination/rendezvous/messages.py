"""The messages of the rendezvous: one line of JSON from the lead, one from the task that it calls."""

import socket
import time
from typing import Annotated

import msgspec
from msgspec import Meta

__all__ = ["MALFORMED", "MOST_BYTES", "SECONDS_TO_SPEAK", "Answer", "Call", "Refused", "exchange"]

MOST_BYTES = 1 << 16  # the longest line
SECONDS_TO_SPEAK = 5.0
# What msgspec raises for a line that is no such message; its MsgspecError does not cover invalid UTF-8.
MALFORMED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

_Name = Annotated[str, Meta(max_length=64)]


class Call(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="call"):
    """What the lead sends: its cluster, the task it calls, who is missing and why, and who takes part."""

    cluster: _Name
    task: _Name
    missing: dict[_Name, Annotated[str, Meta(max_length=200)]]
    start: list[_Name]


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="answer"):
    """What the other tasks send: their cluster and their name."""

    cluster: _Name
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
    if answer.cluster != call.cluster:
        raise Refused("is a task of another cluster, or of another configuration of this one")
    if answer.task != call.task:
        raise Refused("is another task of this cluster")


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
