"""Record what happens in a run, one JSON object a line, in `events.jsonl` of the run's folder.

A number that is NaN or infinite is null there, since JSON has none.

The launcher records what it sees of the tasks. The chief records what it does; where a launcher watches it,
the launcher gets those events too, and shows them. docs/events.md describes every event.
"""

import contextlib
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, Union, get_args

import msgspec

from tfdist.launcher import chief_reports

__all__ = [
    "FILE",
    "VARIABLE",
    "AnyEvent",
    "CheckpointSaved",
    "Configured",
    "EpochEnded",
    "Evaluated",
    "EventFile",
    "Exported",
    "LaunchEnded",
    "LaunchStarted",
    "NetworkChosen",
    "PhaseBegun",
    "Printed",
    "Progressed",
    "RunEnded",
    "RunStarted",
    "TaskExited",
    "TaskKilled",
    "TaskSpeed",
    "TaskStalled",
    "TaskStarted",
    "TasksRestarting",
    "Warned",
    "as_event",
    "as_report",
    "event_types",
    "events_to_file",
    "is_launched",
    "listening",
    "read_event",
    "read_events",
    "read_line",
    "record",
    "record_progress",
    "stamped",
]

FILE = "events.jsonl"
VARIABLE = "TFDIST_EVENTS"  # the file to which the chief of a launch adds its events
# Of one kind that may come often: a run of a month has some ten thousand of them, and one of a minute has 60.
_SECONDS_BETWEEN, _PART_BETWEEN = 1.0, 1e-3


def _tag(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class _Event(msgspec.Struct, tag_field="event", tag=_tag, kw_only=True):
    """An event. Its time is in seconds since 1970, as the recording machine's clock has it."""

    time: float = 0.0


# -- recorded by the launcher --


class LaunchStarted(_Event):
    """The launcher starts the tasks of a cluster."""

    tasks: dict[str, str]
    command: list[str]
    shares: str
    options: dict[str, Any] = {}


class NetworkChosen(_Event):
    """The tasks run in a private network; or they do not, for a reason."""

    is_private: bool
    reason: str


class TaskStarted(_Event):
    """The process of a task has started."""

    task: str
    pid: int


class TaskKilled(_Event):
    """The launcher kills a task that has not answered for some seconds."""

    task: str
    seconds: float


class TaskExited(_Event):
    """The process of a task has ended: with a status, or by minus the number of a signal."""

    task: str
    pid: int
    status: int
    was_asked: bool
    starts_again: bool


class TasksRestarting(_Event):
    """A lost task starts again after a pause, or all tasks do."""

    task: str
    all_tasks: bool
    pause: float
    restart: int
    restarts: int


class LaunchEnded(_Event):
    """All tasks have ended."""

    seconds: float
    restarts: int
    problem: str


# -- recorded by the chief --


class Configured(_Event):
    """The chief starts with a config, of which the section `engine` is left out."""

    config: dict[str, Any]


class RunStarted(_Event):
    """The chief starts to train, or resumes from the checkpoint of a step."""

    strategy: str
    model: str
    parameters: int
    data: str
    substitute_for: str | None
    train_examples: int
    test_examples: int
    batch_size: int
    step: int
    steps: int
    steps_lost: int
    cluster: dict[str, int]
    versions: dict[str, str]
    addresses: dict[str, str] = {}
    machine: dict[str, str] = {}
    command: list[str] = []  # empty where a launcher has recorded it


class PhaseBegun(_Event):
    """The chief begins with something else: connecting, loading, training, evaluating, saving, exporting."""

    phase: str


class Progressed(_Event):
    """The training has reached a step."""

    step: int
    steps: int | None
    examples_per_second: float | None
    loss: float | None


class TaskSpeed(_Event):
    """The milliseconds that each task computes for a step, and the share of all steps that it has done."""

    step: int
    milliseconds: dict[str, float]
    shares: dict[str, float]


class TaskStalled(_Event):
    """The chief, or a worker that serves it, makes no progress, and ends; what it was doing, and how long."""

    task: str
    doing: str
    seconds: float


class Evaluated(_Event):
    """The model was evaluated at a step."""

    step: int
    results: dict[str, float | None]


class EpochEnded(_Event):
    """An epoch of `tfdist.fit` has ended."""

    epoch: int
    epochs: int
    logs: dict[str, float | None]


class CheckpointSaved(_Event):
    """A checkpoint of a step was written in some seconds."""

    step: int
    seconds: float


class Warned(_Event):
    """The chief has logged a warning."""

    text: str


class Printed(_Event, tag="output"):
    """A task or the launcher has printed a line; only `--log_format json` has this event, and no file."""

    task: str
    line: str


class Exported(_Event):
    """The model was exported to a folder."""

    folder: str


class RunEnded(_Event):
    """The chief has ended the run: done, or for a reason."""

    seconds: float
    problem: str


AnyEvent = Union[  # noqa: UP007  # msgspec and get_args read it
    LaunchStarted,
    NetworkChosen,
    TaskStarted,
    TaskKilled,
    TaskExited,
    TasksRestarting,
    LaunchEnded,
    Configured,
    RunStarted,
    PhaseBegun,
    Progressed,
    TaskSpeed,
    TaskStalled,
    Evaluated,
    EpochEnded,
    CheckpointSaved,
    Warned,
    Exported,
    RunEnded,
]
_AnEvent = TypeVar("_AnEvent", bound=_Event)
_OFTEN = (Progressed, TaskSpeed)
_decoder = msgspec.json.Decoder(AnyEvent)


class EventFile:
    """A file to which processes of one machine add whole lines."""

    def __init__(self, path: Path) -> None:
        """Open the file; a run that continues adds to the events of its earlier starts."""
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._began = time.monotonic()
        self._recorded_at: dict[type, float] = {}
        self._lock = threading.Lock()

    def add(self, event: AnyEvent) -> None:
        """Write an event, unless one of a kind that comes often was written just before."""
        # A full disk ends the training where it saves, with a message; here it only costs the event.
        with self._lock, contextlib.suppress(OSError):
            if not self._is_too_early(event):
                os.write(self._fd, msgspec.json.encode(event) + b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _is_too_early(self, event: AnyEvent) -> bool:
        now, kind = time.monotonic(), type(event)
        is_last = isinstance(event, Progressed) and event.step == event.steps
        pause = max(_SECONDS_BETWEEN, _PART_BETWEEN * (now - self._began))
        if isinstance(event, _OFTEN) and not is_last and now - self._recorded_at.get(kind, -pause) < pause:
            return True
        self._recorded_at[kind] = now
        return False


_file: EventFile | None = None
_listeners: list[Callable[[AnyEvent], object]] = []


@contextlib.contextmanager
def events_to_file(path: Path | None = None) -> Iterator[None]:
    """Make `record` write to the file that the launcher names, or else to this one, while the block runs.

    A folder that cannot be written to leaves the run without events: what it needs is checked elsewhere.
    """
    global _file
    named = os.environ.get(VARIABLE)
    path = Path(named) if named else path
    if path is None or _file is not None:
        yield
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        _file = EventFile(path)
    handler = _WarningsToEvents(logging.WARNING)
    logging.getLogger("tfdist").addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger("tfdist").removeHandler(handler)
        if _file is not None:
            _file.close()
        _file = None


class _WarningsToEvents(logging.Handler):
    """Record what is logged, and print it as Python does where no other handler is set up."""

    def emit(self, record_: logging.LogRecord) -> None:
        record(Warned(text=record_.getMessage()))
        others = {*logging.getLogger("tfdist").handlers, *logging.getLogger().handlers} - {self}
        if not others and logging.lastResort is not None:
            logging.lastResort.handle(record_)


def is_launched() -> bool:
    """Return whether a launcher on this machine records the events of the tasks."""
    return bool(os.environ.get(VARIABLE))


@contextlib.contextmanager
def listening(listener: Callable[[AnyEvent], object]) -> Iterator[None]:
    """Call a function with each event that this process records while the block runs."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def record(event: AnyEvent) -> None:
    """Add an event of the chief to its file, if it has one, and tell the launcher, if there is one."""
    stamped(event)
    for listener in _listeners:
        listener(event)
    if _file is not None:
        _file.add(event)
    if not isinstance(event, Progressed):  # the launcher gets a report of it twice a second
        chief_reports.report_event(msgspec.json.encode(event))


def stamped(event: _AnEvent) -> _AnEvent:
    """Set the time of an event to the time of the day, and return it."""
    event.time = time.time()
    return event


def record_progress(report: chief_reports.Progress) -> None:
    """Report progress to the launcher, engine or Kubeflow, and record it."""
    step, steps, speed, loss = report
    chief_reports.report_progress(step, steps, examples_per_second=speed, loss=loss)
    record(as_event(report))


def as_event(report: chief_reports.Progress) -> Progressed:
    """Return a report of progress as an event."""
    return stamped(Progressed(**report._asdict()))


def as_report(event: Progressed) -> chief_reports.Progress:
    """Return an event as a report of progress."""
    return chief_reports.Progress(event.step, event.steps, event.examples_per_second, event.loss)


def read_event(line: bytes) -> AnyEvent | None:
    """Return the event of a line; None if the line is none that this version knows."""
    try:
        event: AnyEvent = _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return event


def read_line(line: bytes) -> AnyEvent | chief_reports.Report | None:
    """Return the event or the report in a line of the chief's; None if it is neither."""
    return read_event(line) or next(chief_reports.read_reports(line), None)


def read_events(path: Path) -> list[AnyEvent]:
    """Return the events of a file; it may lack its last line's end, and have lines of other versions."""
    with open(path, "rb") as file:
        return [event for line in file if (event := read_event(line)) is not None]


def event_types() -> tuple[Any, ...]:
    """Return the class of each kind of event."""
    return get_args(AnyEvent)
