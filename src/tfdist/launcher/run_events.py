"""Define the events of a run, one JSON object a line in `events.jsonl` of the run's folder, and read them.

A number that is NaN or infinite is null there, since JSON has none. docs/events.md describes every event.
"""

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar, Union

import msgspec

FILE = "events.jsonl"
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


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


class RunStarted(_Event, kw_only=True):
    """The chief starts to train, or resumes from the checkpoint of a step.

    If a script calls `fit`, the data have no name, and their sizes, also that of a batch, are 0.
    """

    strategy: str
    model: str
    parameters: int
    data: str = ""
    substitute_for: str | None = None
    train_examples: int = 0
    test_examples: int = 0
    batch_size: int = 0
    step: int
    steps: int
    steps_lost: int | None = 0  # None where a script's `fit` resumes, which does not count them
    cluster: dict[str, int]
    versions: dict[str, str]
    addresses: dict[str, str] = {}
    machine: dict[str, str] = {}
    devices: str = ""
    command: list[str] = []  # empty where a launcher has recorded it


class PhaseBegun(_Event):
    """The chief begins with something else: connecting, loading, training, evaluating, saving, exporting."""

    phase: str


class Progressed(_Event):
    """The training has reached a step; a report of progress to the launcher has the same values."""

    step: _Count
    steps: _Count | None = None
    examples_per_second: float | None = None
    loss: float | None = None
    accuracy: float | None = None


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
    """A checkpoint of a step was written in some seconds, for some of which the training waited."""

    step: int
    seconds: float
    waited: float | None = None  # as long as it took, in the events of earlier versions

    def pause(self) -> float:
        """Return for how many seconds the training waited."""
        return self.seconds if self.waited is None else self.waited


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


AnyEvent = Union[  # noqa: UP007  # msgspec reads it
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
_VALIDATION = "val_"
_Value = TypeVar("_Value")
_AnEvent = TypeVar("_AnEvent", bound=_Event)
_decoder = msgspec.json.Decoder(AnyEvent)


def stamped(event: _AnEvent) -> _AnEvent:
    """Set the time of an event to the time of the day, and return it."""
    event.time = time.time()
    return event


def accuracy_of(logs: Mapping[str, _Value], *, is_of_validation: bool = False) -> _Value | None:
    """Return the accuracy among the logs of Keras; None if there is none, or that of several outputs.

    >>> accuracy_of({"acceleration": 12.5, "binary_accuracy": 0.9, "val_binary_accuracy": 0.8})
    0.9
    """
    named = {
        name.removeprefix(_VALIDATION): value
        for name, value in logs.items()
        if name.startswith(_VALIDATION) == is_of_validation
    }
    found = [value for name, value in named.items() if name in ("accuracy", "acc")]
    found = found or [value for name, value in named.items() if name.endswith(("_accuracy", "_acc"))]
    return found[0] if len(found) == 1 else None


def read_event(line: bytes) -> AnyEvent | None:
    """Return the event of a line; None if the line is none that this version knows."""
    try:
        event: AnyEvent = _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return event


def read_events(path: Path) -> list[AnyEvent]:
    """Return the events of a file; it may lack its last line's end, and have lines of other versions."""
    with open(path, "rb") as file:
        return [event for line in file if (event := read_event(line)) is not None]
