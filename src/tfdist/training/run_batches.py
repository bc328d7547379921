"""Run the batches of an epoch, and call the callbacks around each execution as Keras does."""

import contextlib
import warnings
from collections.abc import Generator
from typing import Any, TypeVar

import tensorflow as tf

from tfdist._utils.keras_2_and_3 import is_keras_2
from tfdist._utils.keras_private import compiled_steps_per_execution
from tfdist._utils.profiler_span import STEP
from tfdist._utils.strategy_kinds import is_asynchronous
from tfdist.coordination.calls_between_tasks import fetch
from tfdist.training.data.distribute import Data
from tfdist.training.epoch_batches import EpochBatches, EpochPart
from tfdist.training.keras.callbacks import count
from tfdist.training.model_session import Phase
from tfdist.training.runners.multi_step import Totals

RAN_OUT = (
    "Your input ran out of data; interrupting training. Make sure that your dataset or generator can make "
    "at least `steps_per_epoch * epochs` batches: call its repeat(), or give fit repeat=True."
)


def run_batches(
    name: str,
    phase: Phase,
    model: Any,
    batches: EpochBatches,
    part: EpochPart,
    *,
    calls: Any,
    before: int = 0,
    are_own: bool = False,
    together: int | None = None,
) -> Generator[tuple[int, dict[str, Any]], None, None]:
    """Run an epoch; yield after each execution how many batches are done, and the logs of its last batch.

    At the end, the logs of `part` are the metrics' results.

    Args:
        name: train or test.
        phase: The steps to run, and their runner.
        model: The model.
        batches: The batches to take.
        part: The part of the epoch that is done already.
        calls: Keras's list of callbacks; None for a config-driven job, which counts steps in its own way.
        before: How many steps earlier epochs have taken, for the profiler's recordings.
        are_own: Whether callbacks are the user's own, which may read metrics and write variables between two
            executions.
        together: The steps of an execution; those that the model is compiled with if None.
    """
    step, runner, position = phase.step, phase.runner, batches.position
    together = steps_per_execution(model) if together is None else together
    if part.totals is None:
        part.totals = step.begin()
    # Keras 3 runs whole executions.
    left = batches.steps_left(part, 1 if calls is None or is_keras_2(model) else together)
    running = runner.epoch(left, lambda: together, part.totals, repeats=batches.repeats)
    running = name_steps(running, before + part.done) if name == "train" else running
    with contextlib.closing(running):
        while True:
            are_taken = batches.are_taken(part)
            # Before the steps, which may need what a callback sets here. If the number of batches is unknown,
            # there is one call too many after the last batch, as in Keras.
            if not (are_taken or part.is_leaving) and batches.may_have_more(part):
                _call(calls, f"on_{name}_batch_begin", part.index)
            if are_own and part.done:
                runner.settle_writes()
            execution = None if are_taken else next(running, None)
            if execution is None:
                break
            ran, part.totals = execution
            if position is not None:
                position.seen += together
            part.logs = step.batch_logs(part.totals)
            part.done += ran
            count(model, name, ran)
            last = last_index(model, part.index, ran)
            if are_own:
                step.store(part.totals)
            _call(calls, f"on_{name}_batch_end", last, part.logs)
            part.index = last + 1
            try:
                yield part.done, part.logs
            except GeneratorExit:  # the caller ends the epoch here
                part.end(step)
                raise
        if not (part.is_leaving or part.is_over):
            if position is not None:
                position.end_epoch(runner, missing=0 if are_taken else together)
            if calls is not None and batches.are_cut_short(part):
                warnings.warn(RAN_OUT, stacklevel=3)
    part.end(step)


def _call(calls: Any, name: str, *arguments: Any) -> None:
    """Call a method of Keras's list of callbacks, if there is a list."""
    if calls is not None:
        getattr(calls, name)(*arguments)


def steps_per_execution(model: Any) -> int:
    """Return the steps_per_execution that the model is compiled with; 1 for a model that is not compiled."""
    value = compiled_steps_per_execution(model)
    if value is None:  # as Keras 2 has it for such a model
        return 1
    # In Keras 2 it is a variable, which may be mirrored.
    return value if isinstance(value, int) else int(fetch(value))


def first_batches(data: Data, model: Any, strategy: tf.distribute.Strategy, steps: int | None) -> Data:
    """Return the first batches of data, in whole executions, where asynchronous workers would take any.

    A function makes each worker's own part, of which nobody knows what comes first.
    """
    if steps is None or not is_asynchronous(strategy) or not isinstance(data, tf.data.Dataset):
        return data
    together = 1 if is_keras_2(model) else steps_per_execution(model)
    return data.take(-(-steps // together) * together)


def last_index(model: Any, begun: int, ran: int) -> int:
    """Return the index of an execution's last step, as callbacks get it.

    Keras 3 counts an execution as a whole one, even if the end of the data cuts it short.
    """
    return begun + (ran if is_keras_2(model) else steps_per_execution(model)) - 1


_Totals = TypeVar("_Totals", bound=Totals)


def name_steps(
    executions: Generator[tuple[int, _Totals], None, None], done: int
) -> Generator[tuple[int, _Totals], None, None]:
    """Yield the executions of a runner; the profiler records each with the number of its first step."""
    try:
        while True:
            with tf.profiler.experimental.Trace(STEP, step_num=done + 1, _r=1) as recorded:
                execution = next(executions, None)
                recorded.set_metadata(steps=0 if execution is None else execution[0])
            if execution is None:
                return
            done += execution[0]
            yield execution
    finally:
        executions.close()
