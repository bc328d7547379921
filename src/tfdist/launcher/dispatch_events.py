"""Record and show what happens in a launch: in the file of events, on the screen and by metrics."""

from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from tfdist._utils.readable_text import short_path
from tfdist.cluster.config import ClusterConfig, Task
from tfdist.launcher import run_events
from tfdist.launcher.console import Screen, ScreenOptions
from tfdist.launcher.prometheus_metrics import PrometheusMetrics
from tfdist.launcher.record_events import EventFile
from tfdist.launcher.screen_filter import ScreenFilter
from tfdist.launcher.task_logs import LogTail, TaskLog, last_lines

_TAIL_LINES, _LINES_TO_SEARCH = 20, 200


class LaunchOutput:
    """The events of a launch, and all that shows them.

    Attributes:
        screen: Shows the events, and what the tasks print.
    """

    def __init__(
        self,
        cluster: ClusterConfig,
        logs: Mapping[Task, TaskLog],
        *,
        stream: TextIO,
        options: ScreenOptions,
        events: EventFile,
        metrics: PrometheusMetrics | None,
    ) -> None:
        self._logs, self._verbosity = logs, options.verbosity
        self._events, self._metrics = events, metrics
        self._tails = [LogTail(str(task), log.path, log.start) for task, log in logs.items()]
        place = short_path(logs[cluster.lead].path.parents[1])
        self.screen = Screen(stream, self._tails, lead=str(cluster.lead), place=place, options=options)

    def __enter__(self) -> "LaunchOutput":
        return self

    def __exit__(self, *_: object) -> None:
        self.screen.close()
        for tail in self._tails:
            tail.close()

    def record(self, event: run_events.AnyEvent) -> None:
        """Record an event of the launcher's, and show it."""
        self._events.add(run_events.stamped(event))
        self.show(event)

    def show(self, event: run_events.AnyEvent) -> None:
        """Show an event that the chief has recorded."""
        self.screen.handle(event)
        if self._metrics is not None:
            self._metrics.handle(event)

    def last_lines(self, task: Task, log: Path) -> list[str]:
        """Return what a task has said last, without the notes of TensorFlow."""
        lines = last_lines(log, self._logs[task].start, _LINES_TO_SEARCH)
        text = "".join(f"{line}\n" for line in lines)
        notes = ScreenFilter(is_live=False, verbosity=self._verbosity)
        return notes.without(text, str(task)).splitlines()[-_TAIL_LINES:]
