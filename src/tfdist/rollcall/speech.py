"""Speak of who is there: one line of JSON from the lead, one from the task that it calls."""

import socket
import time
from typing import Annotated

import msgspec
from msgspec import Meta

__all__ = ["MOST_BYTES", "SECONDS_TO_SPEAK", "Answer", "Call", "Refused", "exchange"]

MOST_BYTES = 1 << 16  # of a line
SECONDS_TO_SPEAK = 5.0

_Name = Annotated[str, Meta(max_length=64)]


class Call(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="call"):
    """Hold what the lead says: whose call it is, whom it calls, who is missing and why, who takes part."""

    cluster: _Name
    task: _Name
    missing: dict[_Name, Annotated[str, Meta(max_length=200)]]
    start: list[_Name]


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="answer"):
    """Hold what the others say: who they are."""

    cluster: _Name
    task: _Name


class Refused(Exception):
    """Report somebody at an address who is not the one that is called."""


def exchange(line: socket.socket, call: Call) -> None:
    """Call a task, and see that it is the one."""
    line.sendall(msgspec.json.encode(call) + b"\n")
    heard = _read_line(line)
    if not heard:
        raise Refused("hangs up")
    try:
        answer = msgspec.json.decode(heard, type=Answer)
    except msgspec.MsgspecError:
        # Its first words are those of an HTTP/2 server: the header of a SETTINGS frame.
        is_grpc = heard[3:9] == b"\x04\x00\x00\x00\x00\x00"
        text = "still runs TensorFlow's server of an earlier start" if is_grpc else "is no task of tfdist's"
        raise Refused(text) from None
    if answer.cluster != call.cluster:
        raise Refused("is a task of another cluster, or of another configuration of this one")
    if answer.task != call.task:
        raise Refused("is a task of this cluster, but takes itself for another one")


def _read_line(line: socket.socket) -> bytes:
    """Read up to the end of a line, of the connection or of the time; give what has come."""
    heard, until = b"", time.monotonic() + SECONDS_TO_SPEAK
    while b"\n" not in heard and len(heard) < MOST_BYTES and time.monotonic() < until:
        try:
            more = line.recv(4096)
        except TimeoutError:
            if not heard:
                raise TimeoutError("accepts connections and does not answer") from None
            break
        if not more:
            break
        heard += more
    return heard
