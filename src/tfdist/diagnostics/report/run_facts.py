"""Read what a run has left in its folder: events, results, and the model's answers for the test images."""

import base64
import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tfdist._utils.read_untrusted_files import check_regular, opened_regular, read_json_file
from tfdist.errors import ConfigError, DataError, shown
from tfdist.launcher.hide_secrets import values_without_secrets
from tfdist.launcher.run_events import (
    FILE,
    AnyEvent,
    Configured,
    LaunchEnded,
    LaunchStarted,
    PhaseBegun,
    RunEnded,
    RunStarted,
    TasksRestarting,
    TaskStarted,
    read_events,
)
from tfdist.profiling.timeline_paths import TaskShares, shares_file, timelines_in
from tfdist.trainer.run_report import RunReport

_Event = TypeVar("_Event")
_Decoded = TypeVar("_Decoded")
_LARGEST_PICTURE = 100_000  # bytes
_MOST_PICTURES, _MOST_PICTURE_CHARACTERS = 24, 2_000_000  # of all pictures, as the page has them
_LONGEST_SILENCE = 1e8  # seconds between two events: three years are a clock that was wrong
_LONGEST_PAUSE = 600.0  # after the end of a start, until the next one counts as part of the run


class RecordedSteps(msgspec.Struct, rename={"first_step": "first step", "last_step": "last step"}):
    """The table of a timeline; one that was recorded from outside has no numbers of steps."""

    tasks: list[TaskShares]
    clocks: str = ""
    first_step: int | None = None
    last_step: int | None = None


class Mistake(msgspec.Struct):
    """A wrong answer: the numbers of two classes, and the image's row in the test data."""

    label: int
    answer: int
    probability: float
    row: int
    picture: str = ""  # as a data URI


class Answers(msgspec.Struct):
    """The counts of the model's answers for each class: (class, answer, count)."""

    classes: list[str]
    counts: list[tuple[int, int, int]] = []
    mistakes: list[Mistake] = []


@dataclass(frozen=True)
class RunFacts:
    """The facts that are known of a run.

    Attributes:
        folder: Its folder, or a copy of it.
        place: The path of its folder, or the address in an object store.
        events: What happened, in order.
        times: For each event, the seconds that the run had taken.
        results: The results, if the run is done; one that was done, and continues, has new ones at its end.
        answers: The answers for the test images, if the run is done.
        recorded: The table of each timeline.
        problem: Why it failed; empty if it is done, None if no end is recorded.
    """

    folder: Path
    place: str
    events: Sequence[AnyEvent] = ()
    times: Sequence[float] = ()
    results: RunReport | None = None
    answers: Answers | None = None
    recorded: Sequence[RecordedSteps] = ()
    problem: str | None = field(default=None)

    def all(self, kind: type[_Event]) -> list[_Event]:
        """Return the events of a kind."""
        return [event for event in self.events if isinstance(event, kind)]

    def last(self, kind: type[_Event]) -> _Event | None:
        """Return the last event of a kind."""
        return next((event for event in reversed(self.events) if isinstance(event, kind)), None)

    @functools.cached_property
    def started(self) -> RunStarted | None:
        """Return how the chief has started to train, the last time."""
        return self.last(RunStarted)

    @functools.cached_property
    def launched(self) -> LaunchStarted | None:
        """Return how the launcher has started the tasks, the last time."""
        return self.last(LaunchStarted)

    @property
    def strategy(self) -> str:
        """Return the name of the strategy; empty if it is unknown."""
        return self.started.strategy if self.started else ""

    @property
    def tasks(self) -> str:
        """Return which tasks there are, in words."""
        if self.launched is not None:
            return self.launched.shares
        sizes = self.started.cluster if self.started else {}
        return ", ".join(f"{role}: {size}" for role, size in sizes.items())

    @property
    def versions(self) -> dict[str, str]:
        """Return the versions of what has trained."""
        return self.started.versions if self.started else self.results.versions if self.results else {}

    @property
    def seconds(self) -> float:
        """Return how long the run took, without the time between two starts of it."""
        if self.times:
            return self.times[-1]
        return self.results.seconds if self.results else 0.0

    @property
    def config(self) -> dict[str, Any]:
        """Return the config, in which earlier versions left secrets; empty for a script of the user's own."""
        configured = self.last(Configured)
        config = configured.config if configured else self.results.config if self.results else {}
        return {name: values_without_secrets(value) for name, value in config.items()}

    @property
    def command(self) -> list[str]:
        """Return the command that started it; empty if it is unknown."""
        if self.launched is not None:
            return self.launched.command
        return self.started.command if self.started else []

    @property
    def restarts(self) -> int:
        """Return how often the launcher has started lost tasks again."""
        return len(self.all(TasksRestarting))


def read_run(folder: Path, place: str | None = None) -> RunFacts:
    """Return what is known of the run in a folder, which may be a copy of one at an address.

    Raises:
        ConfigError: The folder is that of no run.
        DataError: A file there is damaged.
    """
    try:
        events = _events(folder / FILE)
        results = _decoded(folder / "report.json", RunReport)
        answers = None if results is None else _answers(folder / "report")
        tables = [_decoded(shares_file(path), RecordedSteps) for path in timelines_in(folder)]
    except OSError as error:
        raise DataError(str(error.filename or folder), f"cannot be read: {error.strerror}") from None
    if not events and results is None:
        problem = "is no folder of a run: it has neither events.jsonl with an event nor report.json"
        remedy = "Name the folder that tfdist train or tfdist launch has printed, such as runs/NAME"
        raise ConfigError(place or str(folder), problem, remedy=remedy)
    why = _problem(events, results)
    return RunFacts(
        folder=folder,
        place=place or str(folder.absolute()),
        events=events,
        times=_running_seconds(events),
        results=results if why == "" else None,
        answers=answers if why == "" else None,
        recorded=[table for table in tables if table is not None],
        problem=why,
    )


def _events(path: Path) -> list[AnyEvent]:
    try:
        check_regular(path)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return read_events(path)


def _running_seconds(events: Sequence[AnyEvent]) -> list[float]:
    """Return the seconds up to each event, without those in which the run was stopped.

    The clocks of several machines may differ: time never goes back.
    """
    seconds, total = [], 0.0
    before: AnyEvent | None = None
    for event, is_launched in zip(events, _have_launcher(events), strict=True):
        passed = 0.0 if before is None else max(0.0, event.time - before.time)
        # A process alone that was killed says nothing at its end.
        is_start = isinstance(event, LaunchStarted if is_launched else Configured)
        is_start |= isinstance(before, RunEnded | LaunchEnded) and passed > _LONGEST_PAUSE
        total += 0.0 if is_start or passed > _LONGEST_SILENCE else passed
        seconds.append(total)
        before = event
    return seconds


def _have_launcher(events: Sequence[AnyEvent]) -> list[bool]:
    """Return for each event whether a launcher ran the run then; one process may continue what it began."""
    # A launcher that was killed says nothing at its end; a process alone records what was typed.
    starts, is_alone = [False] * len(events), False
    for index, event in reversed([*enumerate(events)]):
        if isinstance(event, RunStarted):
            starts[index] = is_alone = bool(event.command)
        elif isinstance(event, Configured):  # comes first
            starts[index], is_alone = is_alone, False
    is_launched, of_events = False, []
    for event, starts_alone in zip(events, starts, strict=True):
        is_launched = isinstance(event, LaunchStarted) or (is_launched and not starts_alone)
        of_events.append(is_launched)
        is_launched = is_launched and not isinstance(event, LaunchEnded)
    return of_events


def is_stop(problem: str) -> bool:
    """Return whether a run ended because a signal, such as that of Ctrl-C, told it to."""
    return re.match(r"(launcher: stopped by )?SIG[A-Z0-9]+\b", problem) is not None


def _problem(events: Sequence[AnyEvent], results: RunReport | None) -> str | None:
    """Return why the run failed; empty if it is done, None if its last start has not ended."""
    if not events:
        return "" if results is not None else None
    for event, is_launched in reversed([*zip(events, _have_launcher(events), strict=True)]):
        if isinstance(event, LaunchEnded) or (isinstance(event, RunEnded) and not is_launched):
            return event.problem
        if isinstance(event, LaunchStarted | TaskStarted | PhaseBegun | RunStarted):
            return None
    return None


def _answers(folder: Path) -> Answers | None:
    answers = _decoded(folder / "answers.json", Answers)
    if answers is None:
        return None
    known = range(len(answers.classes))
    answers.counts = [cell for cell in answers.counts if cell[0] in known and cell[1] in known]
    answers.mistakes = [each for each in answers.mistakes if each.label in known and each.answer in known]
    room = _MOST_PICTURE_CHARACTERS
    for index, mistake in enumerate(answers.mistakes[:_MOST_PICTURES]):
        picture = _picture(folder / f"mistake-{index}.png")
        if len(picture) <= room:
            mistake.picture, room = picture, room - len(picture)
    answers.mistakes = [mistake for mistake in answers.mistakes if mistake.picture]
    return answers


def _picture(path: Path) -> str:
    """Return a PNG as a data URI; empty if it is missing or too large for the page."""
    try:
        with opened_regular(path) as file:
            data = file.read(_LARGEST_PICTURE + 1)
    except FileNotFoundError:
        return ""
    is_small_png = data.startswith(b"\x89PNG") and len(data) <= _LARGEST_PICTURE
    return f"data:image/png;base64,{base64.b64encode(data).decode()}" if is_small_png else ""


def _decoded(path: Path, kind: type[_Decoded]) -> _Decoded | None:
    """Return the value of a JSON file, or None where it is missing."""
    try:
        return msgspec.convert(read_json_file(path), kind)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, msgspec.ValidationError) as error:
        problem = f"is damaged: {shown(str(error))}"
        raise DataError(str(path), problem, remedy="Remove it: the page then leaves it out") from None
