"""Run the batches of an epoch, with what Keras calls around each of them."""

import contextlib
from collections.abc import Generator
from typing import Any

from tfdist.calls import fetch
from tfdist.loop.callbacks import count
from tfdist.loop.session import Runner, Step

__all__ = ["run_batches"]


def run_batches(
    phase: str, runner: Runner, way: Step, model: Any, *, steps: int | None, expected: int | None, calls: Any
) -> Generator[tuple[int, dict[str, Any]], None, None]:
    """Run an epoch; yield after each execution how many batches are done, and the metrics' results.

    Args:
        phase: train or test.
        runner: What runs the executions.
        way: What they do.
        model: The model.
        steps: How many batches; all where None.
        expected: How many there are, as far as is known.
        calls: Keras's list of callbacks, or None.
    """
    done = 0
    running = runner.epoch(steps, _steps_per_execution(model), way.no_totals())
    with contextlib.closing(running):
        while True:
            # Before the steps, which may need what a callback sets here; Keras too calls it in vain where it
            # cannot know that the data have ended.
            if calls is not None and (expected is None or done < expected):
                getattr(calls, f"on_{phase}_batch_begin")(done)
            ran, totals = next(running, (0, ()))
            if not ran:
                return
            results = way.results(totals)
            done += ran
            count(model, phase, ran)
            if calls is not None:
                getattr(calls, f"on_{phase}_batch_end")(done - 1, results)
            yield done, results


def _steps_per_execution(model: Any) -> int:
    """Give the number that the model is compiled with."""
    # Keras 2 hides it, in a variable.
    value = getattr(model, "steps_per_execution", None)
    return int(fetch(model._steps_per_execution) if value is None else value)
