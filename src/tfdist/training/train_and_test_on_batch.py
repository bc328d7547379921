"""Train or test on one batch, as Keras 3's `train_on_batch` and `test_on_batch` do in one process."""

import contextlib
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfdist._utils.keras_2_and_3 import in_order, keras_of
from tfdist._utils.strategy_kinds import is_asynchronous
from tfdist.coordination.calls_between_tasks import resolver_of
from tfdist.training.arguments import strategy_of
from tfdist.training.data.check_one_row_per_example import check_rows
from tfdist.training.data.dataset_workarounds import with_placeholders
from tfdist.training.data.read_by_chief import ChiefData
from tfdist.training.error_messages.lost_task_errors import public_call
from tfdist.training.keras.datasets_from_inputs import length, made_data
from tfdist.training.keras.kept_traces import Traces, kinds, traces_kept
from tfdist.training.model_session import Coordination, Phase, Session
from tfdist.training.reports.logs import as_logs
from tfdist.training.runners.synchronous_runner import SynchronousRunner


class _IteratorOfOneBatch(NamedTuple):
    """An iterator, and its optional, of one distributed batch that has a value.

    To make and distribute a data set takes longer than most steps. TensorFlow passes the parts of a named
    tuple to a graph.
    """

    batch: Any

    def __next__(self) -> Any:
        return self.batch

    def get_next_as_optional(self) -> "_IteratorOfOneBatch":
        return self

    def has_value(self) -> tf.Tensor:
        return tf.constant(True)

    def get_value(self) -> Any:
        return self.batch


class _DatasetOfOneBatch:
    """A data set of one batch."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __iter__(self) -> _IteratorOfOneBatch:
        return _IteratorOfOneBatch(self._batch)


def fit_batch(
    model: Any,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    class_weight: Any = None,
    return_dict: bool = False,
) -> Any:
    """Train on one batch, and return its loss and metrics as `model.evaluate` does."""
    logs = _run("train_on_batch", model, (x, y, sample_weight), class_weight)
    return logs if return_dict else in_order(model, logs)


def evaluate_batch(
    model: Any, x: Any, y: Any = None, sample_weight: Any = None, return_dict: bool = False
) -> Any:
    """Test on one batch, and return its loss and metrics as `model.evaluate` does."""
    logs = _run("test_on_batch", model, (x, y, sample_weight), None)
    return logs if return_dict else in_order(model, logs)


def on_several_replicas(method: Callable[..., Any], of_keras: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of Keras 3's Model that is Keras's own for one replica in one process."""

    @functools.wraps(of_keras)
    def chosen(model: Any, *args: Any, **kwargs: Any) -> Any:
        strategy = strategy_of(model, None)
        is_alone = strategy.num_replicas_in_sync == 1 and resolver_of(strategy) is None
        return (of_keras if is_alone else method)(model, *args, **kwargs)

    return chosen


def _run(what: str, model: Any, arrays: tuple[Any, Any, Any], class_weight: Any) -> Any:
    """Run one step on one batch, and return the results."""
    strategy, is_training = strategy_of(model, None), what == "train_on_batch"
    with public_call(what, strategy), traces_kept(model) as traces:
        batch = _tensors(model, strategy, arrays, class_weight)
        if strategy.num_replicas_in_sync > 1:
            check_rows([part for part in tf.nest.flatten(batch) if part is not None])
        step, runner = _phase(what, model, strategy, batch, traces)
        runner.rewind(_distributed(batch, strategy))
        totals = step.begin()
        with contextlib.closing(runner.epoch(1, lambda: 1, totals, repeats=False)) as running:
            for _, totals in running:  # noqa: B007  # one step
                pass
        if is_training:
            step.end_epoch()
        results = as_logs(step.batch_logs(totals))
        step.store(totals)
        runner.rewind(())  # so that the batch is not kept
    return results


def _phase(what: str, model: Any, strategy: tf.distribute.Strategy, batch: Any, traces: Traces) -> Phase:
    """Return the phase that batches of this kind share."""
    is_training = what == "train_on_batch"

    def made() -> Phase:
        data = _data(batch, strategy)
        steps = ["train_step" if is_training else "test_step"]
        session = Session(model, strategy, data, traces=traces, steps=steps)
        phase = session.training() if is_training else session.testing()
        if isinstance(phase.runner, SynchronousRunner) and _is_dense(batch):
            # Once, for batches of any size.
            phase.runner.trace(_IteratorOfOneBatch(session.spec), phase.step.begin())
        return phase

    return traces.get((what, strategy, kinds(batch)), made)


def _tensors(
    model: Any, strategy: tf.distribute.Strategy, arrays: tuple[Any, Any, Any], class_weight: Any
) -> tuple[Any, ...]:
    """Return a batch of tensors: at once for arrays and tensors, by Keras's adapter for other data."""
    keras = keras_of(model)
    given = [part for part in arrays if part is not None]
    if class_weight is not None or not all(_is_plain(part) for part in given) or arrays[1] is None:
        x, y, sample_weight = arrays
        size = max(length(x), 1)
        [batch] = made_data(model, strategy, x, y, sample_weight, batch_size=size, class_weight=class_weight)
        return batch if isinstance(batch, tuple) else (batch,)

    def tensor(part: Any) -> tf.Tensor:
        made = tf.convert_to_tensor(part)
        return tf.cast(made, keras.config.floatx()) if made.dtype.is_floating else made

    return tuple(tensor(part) for part in given)


def _is_plain(part: Any) -> bool:
    return isinstance(part, tf.Tensor) or (
        isinstance(part, np.ndarray) and part.dtype != object and part.ndim > 1
    )


def _is_dense(batch: Any) -> bool:
    return all(isinstance(part, tf.Tensor) for part in tf.nest.flatten(batch))


def _data(batch: Any, strategy: tf.distribute.Strategy) -> Any:
    """Return a data set of one batch."""
    examples = tf.data.Dataset.from_tensor_slices(batch)
    dataset = with_placeholders(examples.batch(max(int(examples.cardinality()), 1)))
    if is_asynchronous(strategy) and strategy.num_replicas_in_sync == 1:  # or each worker makes the data set
        return ChiefData(dataset)
    return dataset


def _distributed(batch: Any, strategy: tf.distribute.Strategy) -> Any:
    """Return a distributed data set of one batch."""
    if is_asynchronous(strategy) or not _is_dense(batch):
        return Coordination(strategy).distribute(_data(batch, strategy))[0]
    size = max(len(part) for part in tf.nest.flatten(batch))
    most = -(-size // strategy.num_replicas_in_sync)

    def own_part(context: Any) -> Any:
        begin = context.replica_id_in_sync_group * most
        return tf.nest.map_structure(lambda part: part[begin : begin + most], batch)

    return _DatasetOfOneBatch(strategy.experimental_distribute_values_from_function(own_part))
