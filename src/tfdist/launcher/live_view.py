"""Draw the state of a running cluster for a terminal: a row for each task, and the progress below."""

import statistics
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tfdist.launcher import run_events
from tfdist.launcher.process_usage import ProcessUsage
from tfdist.launcher.progress_text import average_speed, draw_progress

_RATE_WINDOW_SECONDS = 30.0
_DIM, _YELLOW, _RED, _PLAIN = "\x1b[2m", "\x1b[33m", "\x1b[31m", "\x1b[0m"
_ACTIVE = ("training", "evaluating")


class _Column(NamedTuple):
    """A column: its name, least width and rank: where there is no room, the highest is left out first."""

    name: str
    width: int
    rank: int


_RESTARTS = _Column("restarts", 9, 3)
_COLUMNS = (
    _Column("task", 12, 0),
    _Column("state", 16, 0),
    _Column("step", 8, 7),
    _Column("examples/s", 11, 1),
    _Column("ms/step", 8, 2),
    _Column("x median", 9, 4),
    _Column("CPU", 6, 6),
    _Column("memory", 8, 5),
    _RESTARTS,  # where a task has any
)


@dataclass
class _Row:
    """The state of a task."""

    name: str
    pid: int | None = None
    state: str = "loading"
    is_bad: bool = False
    steps: float = 0.0
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
        self._phase = ""
        self._is_apart = False  # whether each worker does steps of its own
        self._measured_at = 0  # the step of the last speeds of the tasks
        self._evaluated = ""  # the accuracy of the last evaluation
        self._usage = ProcessUsage()
        self.reports: deque[tuple[float, run_events.Progressed]] = deque()

    def handle(self, event: run_events.AnyEvent) -> None:
        """Update the state by an event of the launcher or the chief."""
        match event:
            case run_events.LaunchStarted(tasks=tasks):
                self._rows = {name: _Row(name) for name in tasks}
            case run_events.TaskStarted(task=name, pid=pid):
                row = self._rows[name]
                row.pid, row.state, row.is_bad = pid, "starting", False
            case run_events.TaskKilled(task=name):
                self._set(name, "silent: killing", is_bad=True)
            case run_events.TaskStalled(task=name):
                self._set(name, "stuck: ending", is_bad=True)
            case run_events.TaskExited(task=name, status=status, was_asked=asked):
                is_bad = status != 0 and not asked
                self._set(name, "done" if not is_bad else f"ended with {status}", is_bad=is_bad)
                self._rows[name].pid = self._rows[name].cores = self._rows[name].memory = None
            case run_events.TasksRestarting():
                self._note_restart(event)
            case run_events.RunStarted(step=step, strategy=strategy):
                self._is_apart, self._measured_at = strategy == "parameter_server", step
            case run_events.PhaseBegun(phase=phase):
                self._begin_phase(phase)
            case run_events.Progressed():
                self._note_progress(event)
            case run_events.TaskSpeed():
                self._note_speed(event)
            case run_events.Evaluated(results=results):
                accuracy = results.get("accuracy")
                self._evaluated = "" if accuracy is None else f"test accuracy {accuracy:.4f}"
            case run_events.EpochEnded(logs=logs):
                value = run_events.accuracy_of(logs, is_of_validation=True)
                self._evaluated = "" if value is None else f"validation accuracy {value:.4f}"

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
            table = [self._cells(row) for row in shown]
            drawn = self._columns(table, columns)
            head = _line(drawn, {column.name: column.name for column in drawn}, columns)
            lines = [self._paint(head, _DIM)]
            for row, cells in zip(shown, table, strict=True):
                lines.append(self._paint(_line(drawn, cells, columns), self._colour_of(row)))
            if len(shown) < len(self._rows):
                lines.append(f"… and {len(self._rows) - len(shown)} more tasks"[:columns])
        if self.reports:
            # A terminal writes `^C` at the end of the last line; were it full, that would begin another one.
            bar_columns = columns - len("^C")
            lines.append(draw_progress(self.reports, bar_columns, self._encoding, self._evaluated))
        return lines

    def _set(self, name: str, state: str, *, is_bad: bool) -> None:
        row = self._rows[name]
        row.state, row.is_bad = state, is_bad
        row.milliseconds = row.share = None

    def _note_progress(self, report: run_events.Progressed) -> None:
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

    def _note_speed(self, speed: run_events.TaskSpeed) -> None:
        done, self._measured_at = max(0, speed.step - self._measured_at), speed.step
        for name, taken in speed.milliseconds.items():
            if (row := self._rows.get(name)) is not None:
                row.milliseconds, row.share = taken, speed.shares.get(name)
                row.steps += done * (row.share or 0.0)

    def _note_restart(self, event: run_events.TasksRestarting) -> None:
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

    def _columns(self, table: Sequence[Mapping[str, str]], columns: int) -> list[_Column]:
        """Return the columns of the table for which there is room, as wide as what is in them."""
        drawn = [
            column._replace(
                width=max(column.width, *(len(cells.get(column.name, "")) + 1 for cells in table))
            )
            for column in _COLUMNS
        ]
        if not any(row.restarts for row in self._rows.values()):
            drawn = [column for column in drawn if column.name != _RESTARTS.name]
        while drawn[-1].rank and sum(column.width for column in drawn) > columns:
            drawn.remove(max(drawn, key=lambda column: column.rank))
        return drawn

    def _cells(self, row: _Row) -> dict[str, str]:
        """Return what is in the columns of a row, by their names."""
        median = self._median_milliseconds()
        speed = average_speed(self.reports)
        cells = {
            "task": row.name,
            "state": row.state,
            "step": self._step(row),
            "examples/s": "" if speed is None or row.share is None else f"{speed * row.share:,.0f}",
            "x median": f"{row.milliseconds / median:.2f}" if row.milliseconds and median else "",
            "CPU": "" if row.cores is None else f"{100 * row.cores:.0f} %",
            "memory": "" if row.memory is None else _shown_bytes(row.memory),
            "restarts": str(row.restarts or ""),
        }
        if row.milliseconds is not None:
            cells["ms/step"] = f"{row.milliseconds:,.{0 if row.milliseconds >= 10 else 1}f}"
        return cells

    def _colour_of(self, row: _Row) -> str:
        is_slow = row.milliseconds is not None and row.milliseconds > 2 * self._median_milliseconds() > 0
        return _RED if row.is_bad else _YELLOW if is_slow else ""

    def _median_milliseconds(self) -> float:
        taken = [row.milliseconds for row in self._rows.values() if row.milliseconds]
        return statistics.median(taken) if taken else 0.0

    def _step(self, row: _Row) -> str:
        """Return the step of the run for a task that takes part in each, and an asynchronous worker's own."""
        if not self.reports or (row.milliseconds is None and row.name != self._lead):
            return ""
        is_own = self._is_apart and row.name != self._lead
        return _shown_step(round(row.steps) if is_own else self.reports[-1][1].step)

    def _paint(self, text: str, colour: str) -> str:
        return f"{colour}{text}{_PLAIN}" if self._coloured and colour else text


def _line(drawn: Sequence[_Column], cells: Mapping[str, str], columns: int) -> str:
    """Return a line of the table: the first two columns from the left, and numbers from the right."""
    texts = [
        f"{cells.get(name, ''):{'<' if place < 2 else '>'}{width}}"
        for place, (name, width, _) in enumerate(drawn)
    ]
    return "".join(texts)[:columns].rstrip()


def _shown_step(step: int) -> str:
    return f"{step:,}" if step < 1_000_000 else f"{step / 1e6:.2f}M"


def _shown_bytes(count: int) -> str:
    return f"{count / 1e6:.0f} MB" if count < 999.5e6 else f"{count / 1e9:.1f} GB"
