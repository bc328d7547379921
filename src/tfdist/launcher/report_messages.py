"""Define what a chief sends to the launcher beside events, and read all of it: one JSON object per line.

A pipe takes PIPE_BUF bytes (4,096 on Linux) whole. The chief sends a longer line, such as an event about
1,000 tasks, in pieces, each a line that begins with a control character.
"""

import json
import select
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec

from tfdist.launcher.run_events import AnyEvent, Progressed, read_event

_FIRST, _NEXT, _LAST = b"\x01", b"\x02", b"\x03"


class Silence(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A report that a task does not answer, and for how many seconds."""

    silent: str
    seconds: Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class Joined(msgspec.Struct, frozen=True):
    """A report whether the chief takes part in the cluster through tfdist."""

    joined: bool


Report = Progressed | Silence | Joined


def read_reports(data: bytes) -> Iterator[Report]:
    """Yield the valid reports in the data, and skip everything else; one of progress needs no tag.

    >>> list(read_reports(b'{"step": "two"}\\n{"silent": "ps:0", "seconds": 30}\\n'))
    [Silence(silent='ps:0', seconds=30.0)]
    """
    for line in data.splitlines():
        try:
            values = json.loads(line)  # NaN and Infinity too, which msgspec's decoder refuses
            kind: Any = Silence if "silent" in values else Joined if "joined" in values else Progressed
            report: Report = msgspec.convert(values, kind)
        except (TypeError, ValueError, RecursionError):
            continue
        yield report


def read_line(line: bytes) -> AnyEvent | Report | None:
    """Return the event or the report in a line of the chief's; None if it is neither."""
    return read_event(line) or next(read_reports(line), None)


def in_pieces(line: bytes) -> Iterator[bytes]:
    """Yield what to write for a line: all of it, or pieces, each of which a pipe takes whole."""
    room = select.PIPE_BUF - 2
    if len(line) < select.PIPE_BUF:
        yield line + b"\n"
        return
    for start in range(0, len(line), room):
        mark = _FIRST if start == 0 else _LAST if start + room >= len(line) else _NEXT
        yield mark + line[start : start + room] + b"\n"


class JoinedPieces:
    """Join the pieces of lines; forget those of a line that was not sent to its end."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def add(self, line: bytes) -> bytes:
        """Return a whole line, which may be this one; an empty one if pieces of it are still to come."""
        mark = line[:1]
        if mark not in (_FIRST, _NEXT, _LAST):
            return line
        if mark == _FIRST:
            self._pieces.clear()
        self._pieces.append(line[1:])
        return b"".join(self._pieces) if mark == _LAST else b""
