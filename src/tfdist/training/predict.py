"""Predict in parallel, in the order of the data."""

import contextlib
import functools
import warnings
from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist._utils.keras_2_and_3 import as_in_keras, build_for, is_keras_2
from tfdist._utils.strategy_kinds import has_mirrored_workers
from tfdist._utils.tf_private import function_of_a_model
from tfdist.errors import ConfigError, DataError
from tfdist.strategies.bitcast_for_collectives import from_collective_type, to_collective_type
from tfdist.training.arguments import (
    callbacks_of,
    limited,
    refuse_unknown,
    strategy_of,
    verbosity,
    whole_number,
    without_queue_arguments,
)
from tfdist.training.data.dataset_workarounds import with_none
from tfdist.training.data.distribute import is_endless, known_steps
from tfdist.training.data.inspect_dataset import size_of_shuffled
from tfdist.training.data.python_data_of_workers import compare_batches, is_power_of_two
from tfdist.training.data.read_by_chief import ChiefData
from tfdist.training.error_messages.lost_task_errors import public_call
from tfdist.training.keras.callbacks import make_callbacks
from tfdist.training.keras.datasets_from_inputs import length, made_data
from tfdist.training.keras.kept_traces import Traces, kinds, traces_kept
from tfdist.training.keras.model_checks import check_states
from tfdist.training.keras.model_facts import has_own
from tfdist.training.keras.py_dataset_hooks import epoch_hooks
from tfdist.training.keras.py_dataset_threads import threads_of_data_ended
from tfdist.training.keras.steps.predict_step import PlainPredictStep, PredictStep
from tfdist.training.model_session import Coordination, graph_on_workers, randomness_of, replica_spec
from tfdist.training.parameter_servers.applied_steps import Begun
from tfdist.training.parameter_servers.await_server_writes import settle_writes
from tfdist.training.prediction_outputs import decoded, encoded, joined
from tfdist.training.replicas.empty_replicas import if_any, with_an_example
from tfdist.training.replicas.reduction import batch_size, rows_of, unpacked
from tfdist.training.run_batches import RAN_OUT, last_index, steps_per_execution
from tfdist.training.runners.coordinated_runner import CoordinatedRunner
from tfdist.training.workers.stop_together import Stopping

# The numbers of some examples, or of a batch, and the outputs for them.
_Part = tuple[np.ndarray, Any]


def predict(
    model: Any,
    x: Any,
    batch_size: int | None = None,
    verbose: int | str = "auto",
    steps: int | None = None,
    callbacks: Any = None,
    *,
    strategy: tf.distribute.Strategy | None = None,
    **unknown: Any,
) -> Any:
    """Predict in parallel for arrays or a data set; return the outputs in their order, on every worker.

    Args:
        model: The model, made in the strategy's scope; it need not be compiled.
        x: Arrays, or batches of x, (x, y) or (x, y, sample_weight). Only x is used, except that a custom
            predict_step of the model gets the whole batch.
        batch_size: Examples in a global batch of arrays; 32 if None.
        verbose: Keras's verbosity: 0, 1, 2 or auto. Only the chief shows progress.
        steps: The number of batches; all if None.
        callbacks: Keras callbacks.
        strategy: The strategy; if None, the one that the model was made under.
        unknown: Arguments that do not exist, which are refused.
    """
    refuse_unknown(predict, without_queue_arguments(model, unknown))
    strategy = strategy_of(model, strategy)
    steps = limited(model, "steps_per_epoch", steps)
    made = made_data(model, strategy, x, batch_size=batch_size, steps=steps)
    # Keras 3 runs whole executions.
    data, expected = _limited(made, steps, 1 if is_keras_2(model) else steps_per_execution(model))
    callbacks, shown = callbacks_of(callbacks), verbosity(verbose)
    with public_call("predict", strategy), threads_of_data_ended(), traces_kept(model) as traces:
        both = [*callbacks, *epoch_hooks(model, x, "predict")]
        calls = make_callbacks(both, model, strategy, verbose=shown, steps=expected)
        size = None if is_keras_2(model) else size_of_shuffled(made)
        begins_again = size is not None and size == expected
        batches = _predicted(
            model,
            data,
            Coordination(strategy),
            traces,
            begins_again=begins_again,
            are_own=lambda: stopping.is_within_epochs,
        )
        # After the data, with which the workers compare their calls before they exchange anything.
        stopping = Stopping(callbacks, model, strategy, "predicting")
        parts = _collected(batches, model, calls, stopping, expected)
    if not parts:
        raise DataError("the data", "contain no batch")
    if strategy.num_replicas_in_sync == 1:
        return joined([outputs for _, outputs in sorted(parts, key=lambda part: part[0][0])])
    _check_rows(model, parts)
    order = np.argsort(np.concatenate([numbers for numbers, _ in parts]))
    return joined([outputs for _, outputs in parts], order)


def _check_rows(model: Any, parts: Sequence[_Part]) -> None:
    """Raise ConfigError if an output has no row for each example, by whose numbers the rows are sorted."""
    for numbers, outputs in parts:
        for output in tf.nest.flatten(outputs):
            if output.shape[0] != len(numbers):
                raise _without_rows(model, f"{output.shape[0]} rows for {len(numbers)}")


def _without_rows(model: Any, rows: str) -> ConfigError:
    remedy = "Several replicas need one for each: reshape the output, or predict on one_device"
    return ConfigError(f"model {model.name}", f"has an output of {rows} examples", remedy=remedy)


def predict_on_batch(model: Any, x: Any) -> Any:
    """Predict for one batch, as Keras's method does in one process.

    Under several replicas, Keras's own predicts for the whole batch on each of them, and returns all outputs.
    """
    return predict(model, x, batch_size=max(length(x), 1), verbose=0)


def _limited(data: Any, steps: int | None, together: int) -> tuple[tf.data.Dataset, int | None]:
    """Return the data, cut to whole executions of `steps` batches, and the number of batches, if known."""
    if isinstance(data, tf.distribute.DistributedDataset):
        problem = "is distributed already, and its batches have lost the order of their examples"
        raise DataError("x", problem, remedy="Pass the data set itself")
    if not isinstance(data, tf.data.Dataset):
        remedy = "The data of a function have no order, so predictions could not be sorted"
        raise DataError("predict", expected="a tf.data.Dataset", received=type(data).__name__, remedy=remedy)
    if steps is None:
        return data, known_steps(data, "steps")
    steps = whole_number("steps", steps, 1)
    data = data.take(-(-steps // together) * together)
    known = known_steps(data, "steps")
    if known is not None and known < steps:
        warnings.warn(RAN_OUT, stacklevel=3)
    return data, known


def _collected(
    batches: Generator[_Part, None, None], model: Any, calls: Any, stopping: Stopping, expected: int | None
) -> list[_Part]:
    """Return the parts of all batches, and call the callbacks around each execution as Keras does.

    If the number of batches is not known, Keras begins one more at the end of the data.
    """
    model.stop_predicting = False
    calls.on_predict_begin()
    parts: list[_Part] = []
    together, begun = steps_per_execution(model), 0
    calls.on_predict_batch_begin(begun)
    with contextlib.closing(batches):
        for part in batches:
            parts.append(part)
            if len(parts) - begun < together:
                continue
            _end_batch(model, calls, parts, begun)
            if stopping.after_execution():
                begun = len(parts)
                break
            begun = len(parts)
            if begun != expected:
                calls.on_predict_batch_begin(begun)
    if len(parts) > begun:
        _end_batch(model, calls, parts, begun)
    calls.on_predict_end()
    return parts


def _end_batch(model: Any, calls: Any, parts: list[_Part], begun: int) -> None:
    outputs = [output for _, output in parts[begun:]]
    index = last_index(model, begun, len(outputs))
    calls.on_predict_batch_end(index, {"outputs": outputs[0] if len(outputs) == 1 else joined(outputs)})


def _predicted(
    model: Any,
    data: tf.data.Dataset,
    cluster: Coordination,
    traces: Traces,
    *,
    begins_again: bool,
    are_own: Callable[[], bool],
) -> Generator[_Part, None, None]:
    """Yield the examples' numbers and outputs, in the order of arrival.

    `are_own` tells whether callbacks of the user's own may write to variables between batches.
    """
    is_own = has_own(model, "predict_step")
    check_states(model, cluster.strategy)
    dataset, spec = cluster.distribute(_numbered(data, cluster.strategy, whole=is_own))
    one = replica_spec(spec)
    if not is_keras_2(model):
        with cluster.strategy.scope():
            build_for(model, unpacked(one[1])[0] if is_own else one[1])
    step = _step(model, cluster, traces)
    key = ("predict_step", cluster.strategy, kinds(one), isinstance(dataset, ChiefData), is_endless(dataset))
    if cluster.coordinator is None:
        run = traces.get(key, lambda: _in_step(cluster.strategy, step, spec, eagerly=model.run_eagerly))
        settle = functools.partial(settle_writes, cluster.strategy)
        return _predicted_in_step(run, dataset, settle, begins_again=begins_again, are_own=are_own)
    execute = traces.get(key, lambda: graph_on_workers(_execution(step, one), dataset))
    return _predicted_by_workers(cluster.coordinated_runner(execute, dataset))


def _step(model: Any, cluster: Coordination, traces: Traces) -> PredictStep | PlainPredictStep:
    """Return the step that predicts for a batch on all replicas, or on a worker."""
    strategy = cluster.strategy
    predict_part = functools.partial(_outputs, model, strategy)
    is_in_one_process = cluster.coordinator is None and strategy.num_replicas_in_sync == 1
    if is_in_one_process or is_keras_2(model):
        return PlainPredictStep(model, strategy, predict_part)
    return PredictStep(model, strategy, randomness_of(model, strategy, traces), predict_part)


def _outputs(model: Any, strategy: tf.distribute.Strategy, batch: Any) -> tuple[tf.Tensor, Any]:
    """Return the numbers and outputs of the examples of a replica's part of a batch."""
    numbers, data = batch
    size = None
    if strategy.num_replicas_in_sync > 1:
        data = with_an_example(data, tf.shape(numbers)[0])
        numbers = numbers[: tf.math.count_nonzero(numbers >= 0)]  # without those of repeated examples
        size = tf.shape(numbers)[0]
    predict_step = as_in_keras(model, model.predict_step)
    predicted = predict_step(data if has_own(model, "predict_step") else (data,))
    if size is not None and any(output.shape.rank == 0 for output in tf.nest.flatten(predicted)):
        raise _without_rows(model, "one number for all")
    return numbers, tf.nest.map_structure(lambda output: encoded(output, size), predicted)


def _numbered(dataset: tf.data.Dataset, strategy: tf.distribute.Strategy, *, whole: bool) -> tf.data.Dataset:
    """Return a data set with a number for each example, to find its place however the data are distributed.

    If one replica has the whole batch, which need not be of examples alone, the batch has one number.
    Unless `whole`, keep only the inputs of each batch. If a batch has fewer examples than there are replicas,
    the last one is repeated, with the number -1: models may refuse one that is made up.
    """
    replicas = strategy.num_replicas_in_sync

    def number(start: tf.Tensor, data: Any) -> tuple[tf.Tensor, Any]:
        x, _, _ = unpacked(data)
        end = start + tf.cast(batch_size(x) if replicas > 1 else 1, tf.int64)
        numbers, kept = tf.range(start, end), data if whole else x
        parts = [part for part in tf.nest.flatten(kept) if part is not None]
        are_rows = all(isinstance(part, tf.Tensor) and part.shape.rank for part in parts)
        if replicas == 1 or not are_rows or (rows_of(x) or 0) >= replicas:
            return end, (numbers, kept)
        size = tf.shape(numbers)[0]
        has_rows = (size > 0) & tf.reduce_all([batch_size(part) == size for part in parts])
        missing = tf.maximum(replicas - size, 0) * tf.cast(has_rows, size.dtype)

        def repeated(part: Any) -> Any:
            return None if part is None else tf.concat([part, tf.repeat(part[-1:], missing, axis=0)], axis=0)

        numbers = tf.concat([numbers, tf.fill([missing], tf.constant(-1, tf.int64))], axis=0)
        return end, (numbers, tf.nest.map_structure(repeated, kept))

    return dataset.scan(tf.constant(0, tf.int64), tf.autograph.experimental.do_not_convert(number))


def _in_step(
    strategy: tf.distribute.Strategy, step: PredictStep | PlainPredictStep, spec: Any, *, eagerly: bool
) -> Any:
    """Return what predicts for a batch on all replicas that work in step, and gathers their outputs."""

    def gathered(batch: Any) -> Any:
        # The values are those of all replicas, or plain tensors if there is only one replica.
        outputs = step.run(with_none(batch))
        return tf.nest.map_structure(lambda value: _of_all_replicas(strategy, value), outputs)

    if eagerly:
        return gathered
    graph = function_of_a_model(gathered)
    if strategy.num_replicas_in_sync > 1:
        # For batches of any size. (One replica traces the first batch with its size, as Keras does.)
        graph.get_concrete_function(spec)
    return graph


def _of_all_replicas(strategy: tf.distribute.Strategy, value: Any) -> tf.Tensor:
    """Return the replicas' values in one tensor."""
    dtype = strategy.experimental_local_results(value)[0].dtype
    if has_mirrored_workers(strategy):
        value = strategy.run(to_collective_type, args=(value,))
    return from_collective_type(strategy.gather(value, axis=0), dtype)


def _predicted_in_step(
    run: Any, dataset: Any, settle: Callable[[], None], *, begins_again: bool, are_own: Callable[[], bool]
) -> Generator[_Part, None, None]:
    """Yield what each batch has; call `settle` after what callbacks have written."""
    settle()  # here and not where the generator is made: on_predict_begin comes between
    taken = 0
    for batch in dataset:
        if taken and are_own():
            settle()
        numbers, values = run(batch)
        taken += 1
        if is_power_of_two(taken):
            compare_batches(dataset, taken)
        yield numbers.numpy(), decoded(values)
    compare_batches(dataset, taken)
    if begins_again:
        iter(dataset)  # as Keras 3 does at the end of data of a known size: a shuffle draws an order


def _execution(step: PredictStep | PlainPredictStep, spec: Any) -> Any:
    """Return what predicts for a batch on a worker."""

    def execution(iterator: Any, steps: tf.Tensor, begun: Begun) -> tuple[tf.Tensor, Any, tf.Tensor]:
        del steps  # one batch at a time: their sizes differ
        cache = step.ps_cache(spec)
        batch = iterator.get_next_as_optional()
        has_value = batch.has_value()

        def predicted() -> Any:
            return step.run(with_none(batch.get_value()), cache.pairs(cache.values(begun.call)))

        ran = tf.cast(has_value, tf.int32)
        values = if_any(predicted, ran)
        tf.cond(has_value, tf.no_op, cache.forget)
        return ran, values, tf.zeros([], tf.float64)  # no caller reads the waiting time

    return execution


def _predicted_by_workers(runner: CoordinatedRunner) -> Generator[_Part, None, None]:
    with contextlib.closing(runner.parts(None, lambda: 1)) as parts:
        for _, (numbers, values) in parts:
            yield np.asarray(numbers), decoded(values)
