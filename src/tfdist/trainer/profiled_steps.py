"""Record the steps that train.profile names, in all tasks, and keep their timeline in the run's folder."""

import logging

from tfdist.errors import ConfigError
from tfdist.profiling.profiled_steps import ProfiledSteps
from tfdist.profiling.step_range import parse_steps
from tfdist.profiling.timeline_file import Timeline
from tfdist.profiling.timelines_of_run import shares_file
from tfdist.trainer.config import Config
from tfdist.trainer.remote_run_folder import put_file
from tfdist.trainer.run_context import RunContext

__all__ = ["check_profile", "profiled_steps"]

_log = logging.getLogger("tfdist")
_PLACE = "train.profile"


def check_profile(config: Config, total: int) -> tuple[int, int] | None:
    """Return the first and the last step to record; None if none is.

    Raises:
        ConfigError: The run has fewer steps.
    """
    if config.train.profile is None:
        return None
    first, last = parse_steps(config.train.profile, _PLACE)
    if last > total:
        expected, received = f"steps of the run, which has {total}", config.train.profile
        raise ConfigError(_PLACE, expected=expected, received=received, remedy=f"End at {total} or before")
    return first, last


def profiled_steps(context: RunContext, total: int) -> ProfiledSteps:
    """Return the steps to record of a run; see `check_profile`."""
    folder = context.folder

    def keep(timeline: Timeline) -> None:
        if folder.address_of(timeline.path) is not None:
            for path in (timeline.path, shares_file(timeline.path)):
                put_file(folder, path)

    steps = check_profile(context.config, total)
    root = folder.root if context.is_chief else None
    return ProfiledSteps(steps, context.strategy, root, keep, say=_log.info)
