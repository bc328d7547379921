"""Record the steps that train.profile names, in all tasks, and write their timeline into the run's folder."""

import logging

from tfdist.errors import ConfigError, TfdistError
from tfdist.profiling.cluster_recording import ClusterRecording
from tfdist.profiling.timeline_file import write_timeline
from tfdist.trainer.config import Config
from tfdist.trainer.remote_run_folder import put_file
from tfdist.trainer.run_context import RunContext
from tfdist.trainer.step_range import parse_steps

__all__ = ["ProfiledSteps", "check_profile"]

_NEVER = (0, 0)
_PLACE = "train.profile"
_log = logging.getLogger("tfdist")


def check_profile(config: Config, total: int) -> tuple[int, int]:
    """Return the first and the last step to record; zeros if none is.

    Raises:
        ConfigError: The run has fewer steps.
    """
    if config.train.profile is None:
        return _NEVER
    first, last = parse_steps(config.train.profile, _PLACE)
    if last > total:
        expected, received = f"steps of the run, which has {total}", config.train.profile
        raise ConfigError(_PLACE, expected=expected, received=received, remedy=f"End at {total} or before")
    return first, last


class ProfiledSteps:
    """The steps to record; each task that trains calls these methods at the same steps."""

    def __init__(self, context: RunContext, total: int) -> None:
        """Read which steps to record.

        Raises:
            ConfigError: The run has fewer steps.
        """
        self._context = context
        self._first, self._last = check_profile(context.config, total)
        self._recording: ClusterRecording | None = None
        self._begun_at = 0

    def boundary(self, step: int, goal: int) -> int:
        """Return up to which step to train at once, if the goal is that: recordings begin and end between."""
        return min([goal, *(end for end in (self._first - 1, self._last) if end > step)])

    def begin_if_due(self, step: int) -> None:
        """Start to record if the next step is to be recorded; a resumed run may be in the middle of them."""
        if self._recording is None and self._first <= step + 1 <= self._last:
            self._recording = ClusterRecording(self._context.cluster, self._context.strategy)
            self._recording.begin()
            self._begun_at = step

    def end_if_due(self, step: int, *, is_over: bool = False) -> None:
        """Write the timeline after the last step to record, or where the training is over before it."""
        if self._recording is None or (step < self._last and not is_over):
            return
        recording, self._recording = self._recording, None
        self._last = 0  # a run that goes back to a checkpoint does not record the same steps again
        recorded = recording.end()
        if not self._context.is_chief:
            return
        folder = self._context.folder
        about = {"run": folder.place, "first step": self._begun_at + 1, "last step": step}
        try:
            timeline = write_timeline(folder.root, recorded, about, recording.known)
            if folder.address_of(timeline.path) is not None:
                put_file(folder, timeline.path)
        except TfdistError as error:  # no reason to end the training
            _log.warning("there is no timeline: %s", error)
            return
        _log.info("timeline of steps %d to %d: %s", self._begun_at + 1, step, folder.shown(timeline.path))
        for line in timeline.lines:
            _log.info("  %s", line)
