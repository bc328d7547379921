"""Record a range of steps in all tasks of a cluster, from within the training loop."""

import logging
from collections.abc import Callable
from pathlib import Path

import tensorflow as tf

from tfdist.errors import TfdistError
from tfdist.profiling.cluster_recording import ClusterRecording
from tfdist.profiling.timeline_file import Timeline, write_timeline

_log = logging.getLogger("tfdist")


class ProfiledSteps:
    """The steps to record; each task that trains calls these methods at the same steps."""

    def __init__(
        self,
        steps: tuple[int, int] | None,
        strategy: tf.distribute.Strategy,
        folder: Path | None,
        keep: Callable[[Timeline], object] = lambda timeline: None,
        say: Callable[[str], object] = print,
    ) -> None:
        """Store which steps to record.

        Args:
            steps: The first and the last step; None for no recording.
            strategy: The strategy that trains.
            folder: The folder of the run; None in a task that writes no files.
            keep: Called with the timeline when it is written.
            say: Called with what to tell the user, line by line.
        """
        self._first, self._last = steps or (0, 0)
        self._strategy, self._folder, self._keep, self._say = strategy, folder, keep, say
        self._recording: ClusterRecording | None = None
        self._begun_at = 0

    def boundary(self, step: int, goal: int) -> int:
        """Return up to which step to train at once, if the goal is that: recordings begin and end between."""
        return min([goal, *(end for end in (self._first - 1, self._last) if end > step)])

    def begin_if_due(self, step: int, ahead: int = 1) -> None:
        """Start to record if a step to be recorded comes next; a resumed run may be in the middle of them.

        Args:
            step: How many steps are done.
            ahead: How many steps will be taken until this is called again.
        """
        if self._recording is None and step < self._last and self._first <= step + ahead:
            self._recording = ClusterRecording(self._strategy)
            self._recording.begin()
            self._begun_at = step

    def end_if_due(self, step: int, *, is_over: bool = False) -> None:
        """Write the timeline after the last step to record, or where the training is over before it."""
        if self._recording is None or (step < self._last and not is_over):
            return
        recording, self._recording = self._recording, None
        self._last = 0  # a run that goes back to a checkpoint does not record the same steps again
        recorded = recording.end()
        if self._folder is None:
            return
        about = {"run": str(self._folder), "first step": self._begun_at + 1, "last step": step}
        try:
            timeline = write_timeline(self._folder, recorded, about, recording.known)
            self._keep(timeline)
        except TfdistError as error:  # no reason to end the training
            _log.warning("there is no timeline: %s", error)
            return
        self._say(f"timeline of steps {self._begun_at + 1} to {step}: {timeline.path}")
        for line in timeline.lines:
            self._say(f"  {line}")
