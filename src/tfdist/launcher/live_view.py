"""Draw the state of a running cluster for a terminal: a row for each task, and the progress below."""

import statistics
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from tfdist.launcher.chief_reports import Progress
from tfdist.launcher.process_usage import ProcessUsage
from tfdist.launcher.progress_text import average_speed, draw_progress
from tfdist.launcher.run_events import (
    AnyEvent,
    Evaluated,
    LaunchStarted,
    PhaseBegun,
    RunStarted,
    TaskExited,
    TaskKilled,
    TaskSpeed,
    TasksRestarting,
    TaskStalled,
    TaskStarted,
)

__all__ = ["LiveView"]

_RATE_WINDOW_SECONDS = 30.0
_COLUMNS = ("task", "state", "examples/s", "ms/step", "x median", "CPU", "memory", "restarts")
_WIDTHS = (12, 16, 11, 8, 9, 6, 8, 9)
_LEAST_COLUMNS = 4  # on a narrow terminal, columns at the right are left out
_BOLD, _DIM, _YELLOW, _RED, _PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[33m", "\x1b[31m", "\x1b[0m"
_ACTIVE = ("training", "evaluating")


@dataclass
class _Row:
    """What is known of a task."""

    name: str
    pid: int | None = None
    state: str = "loading"
    is_bad: bool = False
    share: float | None = None
    milliseconds: float | None = None
    cores: float | None = None
    memory: int | None = None
    restarts: int = 0


class LiveView:
    """The state of a run, from its events and from the processes of its tasks."""

    def __init__(self, lead: str, *, coloured: bool, encoding: str) -> None:
        """Begin without tasks.

        Args:
            lead: The task that trains or directs the others, which alone reports what it does.
            coloured: Whether the terminal shows colours.
            encoding: The encoding of the terminal, which may lack the bar's characters.
        """
        self._lead, self._coloured, self._encoding = lead, coloured, encoding
        self._rows: dict[str, _Row] = {}
        self._title = ""
        self._phase = ""
        self._evaluated = ""  # the accuracy of the last evaluation
        self._usage = ProcessUsage()
        self.reports: deque[tuple[float, Progress]] = deque()

    def handle(self, event: AnyEvent) -> None:
        """Update the state by an event of the launcher or the chief."""
        match event:
            case LaunchStarted(tasks=tasks):
                self._rows = {name: _Row(name) for name in tasks}
            case TaskStarted(task=name, pid=pid):
                row = self._rows[name]
                row.pid, row.state, row.is_bad = pid, "starting", False
            case TaskKilled(task=name):
                self._set(name, "silent: killing", is_bad=True)
            case TaskStalled(task=name):
                self._set(name, "stuck: ending", is_bad=True)
            case TaskExited(task=name, status=status, was_asked=asked):
                is_bad = status != 0 and not asked
                self._set(name, "done" if not is_bad else f"ended with {status}", is_bad=is_bad)
                self._rows[name].pid = self._rows[name].cores = self._rows[name].memory = None
            case TasksRestarting():
                self._note_restart(event)
            case RunStarted():
                self._title = (
                    f"{event.model} ({event.parameters:,} parameters) on {event.data}, {event.strategy}"
                )
            case PhaseBegun(phase=phase):
                self._begin_phase(phase)
            case TaskSpeed(milliseconds=milliseconds, shares=shares):
                for name, taken in milliseconds.items():
                    if name in self._rows:
                        self._rows[name].milliseconds, self._rows[name].share = taken, shares.get(name)
            case Evaluated(results=results):
                accuracy = results.get("accuracy")
                self._evaluated = "" if accuracy is None else f"test accuracy {accuracy:.4f}"

    def progress(self, report: Progress) -> None:
        """Update the progress by a report."""
        now = time.monotonic()
        if self.reports and report.step < self.reports[-1][1].step:
            self.reports.clear()  # training was restarted from a checkpoint
        if not self.reports or report.step > self.reports[-1][1].step:
            self.reports.append((now, report))
        while len(self.reports) > 2 and now - self.reports[0][0] > _RATE_WINDOW_SECONDS:
            self.reports.popleft()
        self.reports[-1] = (self.reports[-1][0], report)
        if self._phase not in _ACTIVE:  # a script of the user's own reports no phases
            self._begin_phase("training")

    def measure(self) -> None:
        """Measure the processes of the tasks."""
        for row in self._rows.values():
            usage = None if row.pid is None else self._usage.of(row.pid)
            row.cores, row.memory = (None, None) if usage is None else usage

    def lines(self, columns: int, height: int) -> list[str]:
        """Draw the view in at most so many columns and lines."""
        lines = []
        if len(self._rows) > 1 and height > 6:
            shown = list(self._rows.values())[: max(height - 6, 1)]
            lines = [self._paint(self._title[:columns], _BOLD)] if self._title else []
            lines.append(self._paint(self._cells(_COLUMNS, columns), _DIM))
            lines += [self._draw_row(row, columns) for row in shown]
            if len(shown) < len(self._rows):
                lines.append(f"… and {len(self._rows) - len(shown)} more tasks"[:columns])
        if self.reports:
            lines.append(draw_progress(self.reports, columns, self._encoding, self._evaluated))
        return lines

    def _set(self, name: str, state: str, *, is_bad: bool) -> None:
        row = self._rows[name]
        row.state, row.is_bad = state, is_bad
        row.milliseconds = row.share = None

    def _note_restart(self, event: TasksRestarting) -> None:
        for row in self._rows.values():
            if event.all_tasks or row.name == event.task:
                row.restarts += 1
        if event.pause:
            self._rows[event.task].state = f"again in {event.pause:g} s"

    def _begin_phase(self, phase: str) -> None:
        """Change the state of the lead, and of those tasks that work when it trains."""
        self._phase = phase
        for row in self._rows.values():
            if row.pid is None:
                continue
            role = row.name.partition(":")[0]
            if row.name == self._lead:
                row.state = phase
            elif role == "ps":
                row.state = "serving"
            elif role == "evaluator":
                row.state = "evaluating"
            else:
                row.state = phase if phase in _ACTIVE else "ready"

    def _draw_row(self, row: _Row, columns: int) -> str:
        taken = [each.milliseconds for each in self._rows.values() if each.milliseconds]
        median = statistics.median(taken) if taken else 0.0
        speed = average_speed(self.reports)
        cells = (
            row.name,
            row.state,
            "" if speed is None or row.share is None else f"{speed * row.share:,.0f}",
            "" if row.milliseconds is None else f"{row.milliseconds:,.{0 if row.milliseconds >= 10 else 1}f}",
            "" if row.milliseconds is None or not median else f"{row.milliseconds / median:.2f}",
            "" if row.cores is None else f"{100 * row.cores:.0f} %",
            "" if row.memory is None else _shown_bytes(row.memory),
            str(row.restarts or ""),
        )
        is_slow = bool(row.milliseconds and median and row.milliseconds > 2 * median)
        colour = _RED if row.is_bad else _YELLOW if is_slow else ""
        return self._paint(self._cells(cells, columns), colour)

    def _cells(self, cells: Sequence[str], columns: int) -> str:
        line = ""
        for place, (cell, width) in enumerate(zip(cells, _WIDTHS, strict=True)):
            text = f"{cell[: width - 1]:<{width}}" if place < 2 else f"{cell:>{width}}"
            if len(line) + len(text) > columns and place >= _LEAST_COLUMNS:
                break
            line += text
        return line[:columns].rstrip()

    def _paint(self, text: str, colour: str) -> str:
        return f"{colour}{text}{_PLAIN}" if self._coloured and colour else text


def _shown_bytes(count: int) -> str:
    return f"{count / 1e6:.0f} MB" if count < 999.5e6 else f"{count / 1e9:.1f} GB"
