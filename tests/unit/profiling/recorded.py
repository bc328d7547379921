"""Make recordings by hand, in the format in which TensorFlow's profiler writes them."""

from collections.abc import Sequence
from typing import Any

from tensorflow.tsl.profiler.protobuf import xplane_pb2

from tfdist.profiling.tensorflow_profiler import Recorded

__all__ = ["START", "exchange", "message", "operation", "recorded", "step", "waiting"]

START = 1_700_000_000 * 10**9  # nanoseconds since 1970
Event = tuple[str, str, int, int, dict[str, Any]]  # name, type, begin and end in microseconds, facts


def step(number: int, begin: int, end: int, steps: int = 1) -> Event:
    return "train", "", begin, end, {"step_num": number, "steps": steps}


def operation(kind: str, begin: int, end: int, name: str = "a/b/layer/op") -> Event:
    return f"{name}:{kind}", kind, begin, end, {}


def exchange(number: int | str, begin: int, end: int) -> Event:
    return "exchange", "", begin, end, {"round": number, "bytes": 400}


def message(name: str, way: str, other: str, begin: int, end: int) -> Event:
    return "exchange", "", begin, end, {"message": name, "step": 7, "way": way, "other": other}


def waiting(begin: int, end: int) -> Event:
    return "waiting for others", "", begin, end, {}


def recorded(
    task: str,
    threads: Sequence[Sequence[Event]],
    *,
    machine: str = "one",
    start: int = START,
    says_start: bool = True,
) -> Recorded:
    """Return the recording of a task, each of whose threads has some events."""
    space = xplane_pb2.XSpace()
    plane = space.planes.add(name="/host:CPU")
    for number, events in enumerate(threads):
        line = plane.lines.add(id=number, name=f"tf_Compute/{number}", timestamp_ns=1000)
        for event in events:
            _add(plane, line, event)
    if says_start:
        environment = space.planes.add(name="Task Environment")
        environment.stat_metadata[1].name = "profile_start_time"
        environment.stats.add(metadata_id=1, uint64_value=start)
    return Recorded(task, machine, 0 if says_start else start, space.SerializeToString())


def _add(plane: Any, line: Any, event: Event) -> None:
    name, kind, begin, end, facts = event
    number = len(plane.event_metadata) + 1
    plane.event_metadata[number].name, plane.event_metadata[number].display_name = name, kind
    # The line itself begins a microsecond after the recording.
    added = line.events.add(
        metadata_id=number, offset_ps=(begin - 1) * 10**6, duration_ps=(end - begin) * 10**6
    )
    for fact, value in facts.items():
        key = len(plane.stat_metadata) + 1
        plane.stat_metadata[key].name = fact
        field = "int64_value" if isinstance(value, int) else "str_value"
        added.stats.add(metadata_id=key, **{field: value})
