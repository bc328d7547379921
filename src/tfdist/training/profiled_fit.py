"""Record the steps of `fit` that the variable TFDIST_PROFILE names, such as 20:30."""

import os
from pathlib import Path

import tensorflow as tf

from tfdist.launcher.record_events import VARIABLE as EVENTS
from tfdist.profiling.profiled_steps import ProfiledSteps
from tfdist.profiling.step_range import parse_steps
from tfdist.training.keras.callbacks import is_chief

__all__ = ["VARIABLE", "profiled_fit"]

VARIABLE = "TFDIST_PROFILE"


def profiled_fit(strategy: tf.distribute.Strategy) -> ProfiledSteps:
    """Return the steps to record; the timeline goes to the launch's folder, or else to the current one.

    Raises:
        ConfigError: The variable is no range of steps.
    """
    text = os.environ.get(VARIABLE)
    steps = parse_steps(text, VARIABLE) if text else None
    events = os.environ.get(EVENTS)  # which the launcher sets for the chief
    folder = Path(events).parent if events else Path.cwd()
    return ProfiledSteps(steps, strategy, folder if is_chief(strategy) else None)
