"""Evaluate in parallel, every example once."""

from typing import Any

import tensorflow as tf

from tfdist.errors import DataError
from tfdist.loop.feeding import Data, known_steps
from tfdist.loop.session import Runner, Session

__all__ = ["evaluate", "run_tests", "steps_per_execution"]


def evaluate(
    model: Any, data: Data, *, strategy: tf.distribute.Strategy | None = None, steps: int | None = None
) -> dict[str, float]:
    """Evaluate a compiled model in parallel; give its loss and metrics over all examples.

    They are what one process gives, in another order of adding up.

    Args:
        model: The compiled model, made in the strategy's scope.
        data: Data as for `fit`.
        strategy: The strategy; the current one where None.
        steps: How many batches; all where None.
    """
    if steps is None:
        known_steps(data, "steps")
    session = Session(model, strategy or tf.distribute.get_strategy(), data)
    return run_tests(session, session.testing(), model, steps)


def run_tests(
    session: Session, testing: Runner, model: Any, steps: int | None, calls: Any = None
) -> dict[str, float]:
    """Run a test epoch and give the metrics' results."""
    session.step.reset()
    results: dict[str, Any] = {}
    done = 0
    if calls is not None:
        calls.on_test_begin()
    for ran, totals in testing.epoch(steps, steps_per_execution(model), session.step.no_totals()):
        if calls is not None:
            calls.on_test_batch_begin(done)
        results = session.step.results(totals)
        done += ran
        if calls is not None:
            calls.on_test_batch_end(done - 1, results)
    if not done:
        raise DataError("the validation data", "hold no batch")
    found = {name: float(value) for name, value in results.items()}
    if calls is not None:
        calls.on_test_end(found)
    return found


def steps_per_execution(model: Any) -> int:
    """Give the number that the model is compiled with."""
    # Keras 2 hides it, in a variable.
    value = getattr(model, "steps_per_execution", None)
    return int(tf.convert_to_tensor(model._steps_per_execution if value is None else value))
