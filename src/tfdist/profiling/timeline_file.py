"""Write the recordings of all tasks into one file: a Chrome trace, which Perfetto and Chrome open."""

import gzip
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tfdist import __version__
from tfdist._utils.profiler_span import STEP
from tfdist._utils.write_files import write_json, write_whole
from tfdist.errors import DataError
from tfdist.profiling.clock_alignment import Alignment, Before, align
from tfdist.profiling.read_recording import Recording, Span, read_recording
from tfdist.profiling.tensorflow_profiler import Recorded
from tfdist.profiling.time_shares import kind_of, shares_of, summary
from tfdist.profiling.timeline_paths import nth_timeline, shares_file, timelines_in

_ROLES = ("chief", "worker", "ps")
_FIRST_MOMENT = 10**18  # in 2001: what is earlier is no time since 1970
_FIRST_THREADS = ("steps", "exchange")


@dataclass(frozen=True)
class Timeline:
    """What was written.

    Attributes:
        path: The file.
        tasks: The tasks in it.
        lines: The shares of the tasks, as text.
    """

    path: Path
    tasks: tuple[str, ...]
    lines: tuple[str, ...]


def write_timeline(
    folder: Path, recorded: Sequence[Recorded], about: Mapping[str, Any], known: Sequence[Before] = ()
) -> Timeline:
    """Write the timeline of recordings into the folder of a run, beside those that it has.

    Args:
        folder: The folder of the run.
        recorded: What was recorded of each task.
        about: What else to say in the file, such as which steps were recorded.
        known: See `align`.

    Raises:
        DataError: Nothing was recorded, or a recording is damaged.
        StorageError: The file cannot be written.
    """
    recordings = [read_recording(each) for each in sorted(recorded, key=lambda each: _place(each.task))]
    recordings = [recording for recording in recordings if recording.spans]
    if not recordings:
        remedy = "Record while the run trains, and for longer"
        raise DataError("timeline", "the profiler has recorded nothing in any task", remedy=remedy)
    alignment = align(recordings, known)
    shares = shares_of(recordings, alignment)
    table = [asdict(of_task) for of_task in shares]
    begin = min(each.spans[0].begin + alignment.shifts[each.task] for each in recordings)
    trace = {
        "displayTimeUnit": "ms",
        "traceEvents": list(_events(recordings, alignment, begin)),
        "metadata": {
            "tfdist": __version__,
            **about,
            "began": _moment(begin),
            "clocks": _clocks(alignment),
            "shares": table,
        },
    }
    path = nth_timeline(folder, len(timelines_in(folder)) + 1)
    write_whole(path, gzip.compress(json.dumps(trace).encode(), compresslevel=6))
    write_json(shares_file(path), {**about, "clocks": alignment.method, "tasks": table})
    tasks = tuple(recording.task for recording in recordings)
    return Timeline(path, tasks, tuple(summary(shares, alignment)))


def _place(task: str) -> tuple[int, int]:
    """Return the place of a task among the others, whatever their order was."""
    role, _, index = task.partition(":")
    return (_ROLES.index(role) if role in _ROLES else len(_ROLES), int(index) if index.isdecimal() else 0)


def _moment(nanoseconds: int) -> str | None:
    """Return a time of the day; None for one that counts from the start of a recording."""
    if nanoseconds < _FIRST_MOMENT:
        return None
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(nanoseconds / 1e9))


def _clocks(alignment: Alignment) -> dict[str, Any]:
    """Return how the clocks were aligned, for the reader of the file."""
    errors = {task: None if error is None else error / 1e3 for task, error in alignment.errors.items()}
    shifts = {task: shift / 1e3 for task, shift in alignment.shifts.items()}
    return {"aligned by": alignment.method, "shift in us": shifts, "largest error in us": errors}


def _events(recordings: Sequence[Recording], alignment: Alignment, begin: int) -> Iterator[dict[str, Any]]:
    for process, recording in enumerate(recordings, 1):
        yield _named("process_name", process, 0, name=recording.task)
        yield _named("process_sort_index", process, 0, sort_index=process)
        threads = sorted({span.thread for span in recording.spans}, key=_thread_place)
        numbers = {thread: number for number, thread in enumerate(threads, 1)}
        for thread, number in numbers.items():
            yield _named("thread_name", process, number, name=thread)
            yield _named("thread_sort_index", process, number, sort_index=number)
        shift = alignment.shifts[recording.task] - begin
        for span in recording.spans:
            yield _event(span, process, numbers[span.thread], shift)


def _named(what: str, process: int, thread: int, **value: Any) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": value}


def _thread_place(thread: str) -> tuple[int, str, int]:
    kind, _, number = thread.rpartition(" ")
    place = _FIRST_THREADS.index(kind) if kind in _FIRST_THREADS else len(_FIRST_THREADS)
    return place, kind, int(number) if number.isdecimal() else 0


def _event(span: Span, process: int, thread: int, shift: int) -> dict[str, Any]:
    """Return a part of the work as an event, whose times are in microseconds."""
    name = _shown_name(span)
    facts = span.facts if name == span.name else {**span.facts, "name": span.name}
    event = {
        "ph": "X",
        "name": name,
        "cat": kind_of(span) or "other",
        "pid": process,
        "tid": thread,
        "ts": (span.begin + shift) / 1e3,
        "dur": (span.end - span.begin) / 1e3,
    }
    return {**event, "args": facts} if facts else event


def _shown_name(span: Span) -> str:
    """Return the number of a step; of an operation the end of its name, which fits where it is shown."""
    if span.operation:
        return "/".join(span.name.split("/")[-2:])
    if span.name != STEP or "step_num" not in span.facts:
        return span.name
    first, count = int(span.facts["step_num"]), int(span.facts.get("steps", 1))
    if count > 1:
        return f"steps {first} to {first + count - 1}"
    return f"step {first}" if count else "end of steps"
