"""Define what a chief sends to the launcher beside events, and read all of it: one JSON object per line."""

import json
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec

from tfdist.launcher.run_events import AnyEvent, Progressed, read_event


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
