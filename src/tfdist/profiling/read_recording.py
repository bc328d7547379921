"""Read what TensorFlow's profiler has recorded: which thread of a task did what, from when to when."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tfdist._utils.profiler_span import EXCHANGE, STEP
from tfdist._utils.tf_private import read_planes
from tfdist.errors import ConfigError, DataError
from tfdist.profiling.tensorflow_profiler import Recorded

# Notes of the thread pools about each other, without a length: they are most of what is recorded.
_NOISE = "ThreadpoolListener::"
_SERVICES = ("EagerService", "WorkerService")  # calls of other tasks, which are named like operations
_ENVIRONMENT = "Task Environment"
_START = "profile_start_time"


@dataclass(frozen=True)
class Span:
    """A part of the work of a thread.

    Attributes:
        name: Its name.
        thread: The thread, or the stream of a GPU.
        begin: When it began, in nanoseconds since 1970 by the clock of its machine.
        end: When it ended.
        operation: The type of the operation that it computes, such as MatMul; empty if it is none.
        facts: What else was recorded of it.
    """

    name: str
    thread: str
    begin: int
    end: int
    operation: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Recording:
    """What was recorded of a task.

    Attributes:
        task: The name of the task.
        machine: The machine, whose processes have one clock.
        spans: All parts of its work, in order of time.
    """

    task: str
    machine: str
    spans: tuple[Span, ...]

    def named(self, name: str) -> list[Span]:
        """Return the spans of a name."""
        return [span for span in self.spans if span.name == name]

    @property
    def steps(self) -> list[Span]:
        """Return the executions of the task's training loop, each with the number of its (first) step."""
        return [span for span in self.named(STEP) if span.facts.get("steps", 1) and "step_num" in span.facts]


def read_recording(recorded: Recorded) -> Recording:
    """Return the spans of a recording.

    Raises:
        ConfigError: The installed TensorFlow does not have the format.
        DataError: The recording is damaged.
    """
    where = f"recording of {recorded.task}"
    try:
        space = read_planes(recorded.planes)
    except ModuleNotFoundError as error:
        problem = f"TensorFlow {tf.__version__} cannot read its own recordings ({error})"
        raise ConfigError(where, problem, remedy="Use TensorFlow 2.12 to 2.21") from None
    except ValueError as error:
        raise DataError(where, f"is damaged: {error}", remedy="Record again") from None
    start = _start(space) or recorded.began
    machine = recorded.machine if start else f"{recorded.task}'s own"  # its times count from its start
    spans = [span for plane in space.planes for span in _spans_of(plane, start)]
    return Recording(recorded.task, machine, tuple(sorted(spans, key=lambda span: span.begin)))


def _start(space: Any) -> int:
    """Return when the recording began, from where events are counted; 0 if it does not say."""
    for plane in space.planes:
        if plane.name == _ENVIRONMENT:
            for stat in plane.stats:
                if plane.stat_metadata[stat.metadata_id].name == _START:
                    return int(_value(plane, stat))
    return 0  # as in TensorFlow 2.12


def _spans_of(plane: Any, start: int) -> Iterator[Span]:
    is_host = plane.name.startswith("/host:CPU")
    for number, line in enumerate(plane.lines):
        name = line.display_name or line.name or str(line.id)
        kinds = [plane.event_metadata[event.metadata_id] for event in line.events]
        thread = _thread(name, number, kinds) if is_host else f"{plane.name} {name}"
        for event in line.events:
            about = plane.event_metadata[event.metadata_id]
            if about.name.startswith(_NOISE):
                continue
            begin = start + line.timestamp_ns + event.offset_ps // 1000
            yield Span(
                name=about.name or about.display_name,
                thread=thread,
                begin=begin,
                end=begin + event.duration_ps // 1000,
                operation=_operation(about) if is_host else about.name,
                facts=_facts(plane, event),
            )


def _thread(name: str, number: int, kinds: Sequence[Any]) -> str:
    """Return the name of a thread; those of one kind have the same name, and so get numbers."""
    names = {kind.name for kind in kinds}
    if STEP in names:
        return f"steps {number}"
    # A thread that computes may exchange too, between two operations.
    is_only_exchange = EXCHANGE in names and not any(map(_operation, kinds))
    return f"exchange {number}" if is_only_exchange else f"{name.partition('/')[0]} {number}"


def _operation(about: Any) -> str:
    """Return the type of an operation, which the profiler adds to its name."""
    name, colon, kind = about.name.rpartition(":")
    is_operation = colon and kind == about.display_name and name not in _SERVICES
    return kind if is_operation else ""


def _facts(plane: Any, event: Any) -> dict[str, Any]:
    found = {plane.stat_metadata[stat.metadata_id].name: _value(plane, stat) for stat in event.stats}
    return {name: value for name, value in found.items() if not name.startswith("_")}


def _value(plane: Any, stat: Any) -> Any:
    kind = stat.WhichOneof("value")
    if kind == "ref_value":
        return plane.stat_metadata[stat.ref_value].name
    value = getattr(stat, kind)
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
