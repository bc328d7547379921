"""Compute how many steps a run, an epoch and a call of the graph have, and how often a run is evaluated."""

from typing import Any

from tfdist.datasets.open_data import Data
from tfdist.errors import ConfigError
from tfdist.profiling.parse_step_range import parse_steps
from tfdist.trainer.config import Config
from tfdist.training.run_batches import steps_per_execution
from tfdist.training.workers.choose_steps_per_call import StepsPerCall


def steps_per_epoch(config: Config, data: Data) -> int:
    """Return the whole number of batches in the training data."""
    return max(1, data.train_examples // config.data.batch_size)


def total_steps(config: Config, data: Data) -> int:
    """Return the number of steps that a run takes."""
    return config.train.steps or config.train.epochs * steps_per_epoch(config, data)


def periods(config: Config, data: Data) -> tuple[int, int]:
    """Return after how many steps each the model is evaluated and saved."""
    per_epoch = steps_per_epoch(config, data)
    return config.evaluation.every or per_epoch, config.checkpoint.every or per_epoch


def profiled_range(config: Config, total: int) -> tuple[int, int] | None:
    """Return the first and the last step to record; None if none is.

    Raises:
        ConfigError: The run has fewer steps.
    """
    if config.train.profile is None:
        return None
    place = "train.profile"
    first, last = parse_steps(config.train.profile, place)
    if last > total:
        expected, received = f"steps of the run, which has {total}", config.train.profile
        raise ConfigError(place, expected=expected, received=received, remedy=f"End at {total} or before")
    return first, last


def steps_per_call(config: Config, data: Data, model: Any, *, workers: int) -> StepsPerCall:
    """Return the steps of a call of the graph: what the config or the compiled model says, or what fits.

    Args:
        config: The config.
        data: The data set.
        model: The compiled model.
        workers: The number of asynchronous workers; 0 if all tasks train in step.
    """
    fixed = config.train.steps_per_execution or steps_per_execution(model)
    is_said = config.train.steps_per_execution is not None or fixed > 1
    if is_said or config.train.callbacks or model.run_eagerly:  # Keras calls callbacks after each call
        return StepsPerCall(fixed)
    every = config.summaries.every
    if not workers:
        return StepsPerCall(None, most=every)
    # At an evaluation and at a checkpoint, no worker should wait long for the last call of another.
    return StepsPerCall(None, most=min(every, *periods(config, data)) // (2 * workers), workers=workers)
