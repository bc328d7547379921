"""Evaluate in parallel, every example once."""

import contextlib
import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist._utils.keras_2_and_3 import in_order, is_keras_2
from tfdist.errors import DataError
from tfdist.training.arguments import (
    callbacks_of,
    limited,
    refuse_unknown,
    strategy_of,
    verbosity,
    whole_number,
    without_queue_arguments,
)
from tfdist.training.epoch_batches import EpochBatches, EpochPart
from tfdist.training.error_messages.lost_task_errors import public_call
from tfdist.training.keras.callbacks import make_callbacks, reset_batch_count
from tfdist.training.keras.datasets_from_inputs import made_data
from tfdist.training.keras.kept_traces import traces_kept
from tfdist.training.keras.losses_and_metrics.metrics_of_callbacks import metrics_read_in_this_process
from tfdist.training.keras.py_dataset_hooks import epoch_hooks
from tfdist.training.keras.py_dataset_threads import threads_of_data_ended
from tfdist.training.model_session import Phase, Session
from tfdist.training.reports.logs import as_logs
from tfdist.training.run_batches import first_batches, run_batches
from tfdist.training.workers.stop_together import Stopping


def evaluate(
    model: Any,
    x: Any = None,
    y: Any = None,
    batch_size: int | None = None,
    verbose: int | str = "auto",
    sample_weight: Any = None,
    steps: int | None = None,
    callbacks: Any = None,
    return_dict: bool = False,
    *,
    strategy: tf.distribute.Strategy | None = None,
    **unknown: Any,
) -> Any:
    """Evaluate a compiled model in parallel; return its loss and metrics over all examples, as Keras does.

    The results are those of one process, except for the order of additions. They are a list of loss and
    metrics; the loss alone, if there is no metric; or a dict, with `return_dict`.

    Args:
        model: The compiled model, made in the strategy's scope.
        x: Data as for `fit`.
        y: Targets, if x are arrays.
        batch_size: Examples in a global batch of arrays; 32 if None.
        verbose: Keras's verbosity: 0, 1, 2 or auto. Only the chief shows progress.
        sample_weight: The weight of each example's loss, if x are arrays.
        steps: The number of batches; all if None.
        callbacks: Keras callbacks.
        return_dict: Whether to return a dict.
        strategy: The strategy; if None, the one that the model was made under.
        unknown: Arguments that do not exist, which are refused.
    """
    refuse_unknown(evaluate, without_queue_arguments(model, unknown))
    steps = limited(model, "steps_per_epoch", steps)
    steps = steps if steps is None else whole_number("steps", steps, 1)
    callbacks, shown = callbacks_of(callbacks), verbosity(verbose)
    strategy = strategy_of(model, strategy)
    hooks = epoch_hooks(model, x, "test")
    x = made_data(model, strategy, x, y, sample_weight, batch_size=batch_size, steps=steps)
    x = first_batches(x, model, strategy, steps)
    batches = EpochBatches.of(x, model, strategy, steps, "steps")
    with public_call("evaluate", strategy), threads_of_data_ended(), traces_kept(model) as traces:
        session = Session(model, strategy, x, traces=traces, steps=["test_step"])
        if steps is None:
            session.check_ends(test_steps="steps")
        testing = session.testing()
        calls = make_callbacks([*callbacks, *hooks], model, strategy, verbose=shown, steps=batches.expected)
        stopping = Stopping(callbacks, model, strategy, "evaluating")
        leave, are_own = stopping.after_execution, stopping.is_within_epochs
        with metrics_read_in_this_process(model, strategy):
            logs = run_tests(testing, model, batches, calls, leave=leave, are_own=are_own, name="the data")
    return logs if return_dict else in_order(model, logs)


def run_tests(
    testing: Phase,
    model: Any,
    batches: EpochBatches,
    calls: Any = None,
    *,
    leave: Callable[[], bool] | None = None,
    are_own: bool = False,
    together: int | None = None,
    name: str = "the validation data",
) -> dict[str, float]:
    """Run a test epoch from the beginning of its data, and return the metrics' results.

    `leave` is called after each execution. If it returns True, the results are those of a part of the data.
    `are_own` is for `run_batches`. `together` is the number of batches in an execution, if it is not that of
    the model. `name` names the data in an error.
    """
    # As in Keras, each call tests on the same examples, also if it takes only some of the batches.
    testing.runner.rewind()
    part = EpochPart()
    reset_batch_count(model, "test")
    model.stop_evaluating = False
    if calls is not None:
        calls.on_test_begin()
    batches = dataclasses.replace(batches, position=copy.copy(batches.position))
    running = run_batches(
        "test", testing, model, batches, part, calls=calls, are_own=are_own, together=together
    )
    with contextlib.closing(running):
        for _ in running:
            if leave is not None and leave():
                break
    if not part.done:
        raise DataError(name, "contain no batch")
    logs = as_logs(part.logs, are_sorted=not is_keras_2(model))
    if calls is not None:
        calls.on_test_end(logs)
    return logs
