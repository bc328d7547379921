"""Evaluate in parallel, every example once."""

import contextlib
import logging
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.errors import DataError
from tfdist.loop.callbacks import count_anew
from tfdist.loop.epochs import run_batches
from tfdist.loop.feeding import Data, known_steps
from tfdist.loop.lost import naming_lost_tasks
from tfdist.loop.session import Runner, Session

__all__ = ["evaluate", "run_tests"]

_log = logging.getLogger("tfdist")


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
    expected = known_steps(data, "steps") if steps is None else steps
    strategy = strategy or tf.distribute.get_strategy()
    with naming_lost_tasks("evaluate", strategy):
        session = Session(model, strategy, data)
        return run_tests(session, session.testing(), model, steps, expected=expected)


def run_tests(
    session: Session,
    testing: Runner,
    model: Any,
    steps: int | None,
    calls: Any = None,
    *,
    expected: int | None = None,
    leave: Callable[[], bool] | None = None,
) -> dict[str, float]:
    """Run a test epoch, of so many batches as far as is known, and give the metrics' results.

    Where `leave`, asked after each execution, says so, they are those of a part of the data.
    """
    session.test_step.reset()
    testing.rewind()  # the same examples each time, as in Keras, also where only some batches are wanted
    results: dict[str, Any] = {}
    done = 0
    count_anew(model, "test")
    if calls is not None:
        calls.on_test_begin()
    batches = run_batches(
        "test", testing, session.test_step, model, steps=steps, expected=expected, calls=calls
    )
    with contextlib.closing(batches):
        for done, results in batches:  # noqa: B007  # the last ones are those of all batches
            if leave is not None and leave():
                break
    if not done:
        raise DataError("the validation data", "hold no batch")
    if steps is None and expected is not None and done > expected:
        _log.warning("a worker came back while evaluating: %d batches counted of %d", done, expected)
    found = {name: float(value) for name, value in results.items()}
    if calls is not None:
        calls.on_test_end(found)
    return found
