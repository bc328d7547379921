"""Run a model's custom train_step or test_step, as Keras's fit does."""

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist._utils.keras_2_and_3 import as_in_keras, flat_logs, is_keras_2, keras_of
from tfdist._utils.keras_private import losses_may_average
from tfdist._utils.strategy_kinds import has_mirrored_workers
from tfdist._utils.tf_private import function_of_a_model, worker_count
from tfdist.errors import ConfigError
from tfdist.training.data.dataset_workarounds import with_none
from tfdist.training.keras.model_facts import uses_xla
from tfdist.training.keras.steps.step_base import KerasStep, check_log, check_metrics_of_checkpoint
from tfdist.training.runners.multi_step import Totals, make_execution
from tfdist.training.runners.replica_stats import Failure


class CustomStepAsIs(KerasStep):
    """A step that calls the model's own method on each replica's part of a batch.

    The totals are the logs of the last batch. The model decides what its method computes, and whether to
    divide a loss by the number of replicas. Only models of Keras 2 have several replicas here; their logs are
    added up, as Keras 2 does. If the logs name exactly the metrics of the model, the results of the metrics
    replace them.
    """

    writes_in_tests = True  # as far as anybody knows

    def __init__(
        self,
        model: Any,
        strategy: tf.distribute.Strategy,
        name: str,
        element_spec: Any,
        *,
        stops_at_failure: bool,
    ) -> None:
        super().__init__(model, strategy)
        self._name, self._stops = name, stops_at_failure
        self._logs: dict[str, Any] = {}
        self._more: Any = None
        if not model.run_eagerly:
            # The first trace may create variables, which TensorFlow does not allow in a loop.
            self._one = tf.function(self._run, autograph=False, input_signature=[element_spec])
            self._more = function_of_a_model(self._loop)

    def empty_totals(self) -> Totals:
        """Return no logs and no times: only the model knows where it computes and where it waits."""
        return Totals((), tf.zeros([0, 0], tf.float64))

    def merged(self, totals: Totals, others: Totals) -> Totals:
        """Return the later logs."""
        del totals
        return others

    def since(self, before: Totals, now: Totals) -> Totals:
        """Return the logs of the last batch."""
        del before
        return now

    def kept(self, totals: Totals) -> list[Any]:
        """Return what a checkpoint keeps in the middle of an epoch: the variables of the metrics."""
        del totals
        return [tf.convert_to_tensor(variable.value) for variable in self._metric_variables]

    def resumed(self, kept: Sequence[Any]) -> Totals:
        """Return the totals of an epoch that continues from what `kept` returned."""
        totals, variables = self.begin(), self._metric_variables
        check_metrics_of_checkpoint(variables, kept)
        for variable, value in zip(variables, kept, strict=True):
            variable.assign(value)
        return totals

    @property
    def _metric_variables(self) -> list[Any]:
        return [variable for metric in self._model.metrics for variable in metric.variables]

    def execution(
        self, iterator: Any, steps: tf.Tensor, totals: Totals
    ) -> tuple[tf.Tensor, Totals, tf.Tensor]:
        """Run up to `steps` steps on an iterator; return how many ran, the last logs, and the waiting time.

        A loop in a graph must know in advance what each step returns, so the step is traced before. The
        waiting time is that of the loop.
        """
        if self._more is None:
            return self._eager_execution(iterator, int(steps), totals)
        if not totals.metrics:
            specs = self._one.get_concrete_function().structured_outputs
            totals = tf.nest.map_structure(lambda spec: tf.zeros(spec.shape, spec.dtype), specs)
        return self._more(iterator, steps, totals)  # type: ignore[no-any-return]

    def _eager_execution(
        self, iterator: Any, steps: int, totals: Totals
    ) -> tuple[tf.Tensor, Totals, tf.Tensor]:
        done = 0
        while done < steps:
            batch = iterator.get_next_as_optional()
            if not batch.has_value():
                break
            totals, done = self._run(batch.get_value()), done + 1
            if self._stops and self.is_failing(totals):
                break
        return tf.constant(done), totals, tf.zeros([], tf.float64)

    def results(self, totals: Totals) -> dict[str, Any]:
        """Return the logs, or the metrics' results if the logs name exactly the metrics."""
        with self._strategy.scope():
            if is_keras_2(self._model):
                metrics = {metric.name: metric.result() for metric in self._model.metrics}
            else:
                metrics = self._model.get_metrics_result()
        return metrics if set(metrics) == set(self._logs) else self.batch_logs(totals)

    def batch_logs(self, totals: Totals) -> dict[str, Any]:
        """Return the logs as the model's own step returns them."""
        return flat_logs(tf.nest.pack_sequence_as(self._logs, totals.metrics))

    def times(self, totals: Totals) -> None:
        """Return None: only the model knows where it computes and where it waits."""
        del totals

    def is_failing(self, totals: Totals) -> tf.Tensor:
        """Return whether the loss in the logs is NaN or infinite."""
        finite = [tf.reduce_all(tf.math.is_finite(loss)) for loss in self._losses(totals)]
        return tf.logical_not(tf.reduce_all(finite))

    def failure(self, totals: Totals) -> Failure | None:
        """Return how the loss in the logs fails, NaN or infinite, if it does; the logs name no replica."""
        losses = [np.asarray(loss) for loss in self._losses(totals)]
        if all(np.isfinite(loss).all() for loss in losses):
            return None
        return Failure("NaN" if any(np.isnan(loss).any() for loss in losses) else "infinite")

    def _losses(self, totals: Totals) -> list[Any]:
        logs = tf.nest.pack_sequence_as(self._logs, totals.metrics) if totals.metrics else {}
        return [loss for loss in tf.nest.flatten(logs.get("loss", ())) if loss.dtype.is_floating]

    def _loop(self, iterator: Any, steps: tf.Tensor, totals: Totals) -> tuple[tf.Tensor, Totals, tf.Tensor]:
        is_failing = self.is_failing if self._stops else None
        execution = make_execution(lambda batch, _: self._run(batch), is_failing=is_failing)
        return execution(iterator, steps, totals)

    def _run(self, batch: Any) -> Totals:
        step = getattr(self._model, self._name)
        if uses_xla(self._model, self._strategy):  # for which Keras 2 converts the step itself, too
            step = tf.function(step, jit_compile=True, autograph=is_keras_2(self._model))
        else:
            step = as_in_keras(self._model, step)
        with self._averages():
            result = self._strategy.run(step, args=(with_none(batch),))
        if not isinstance(result, dict):
            received = f"a {type(result).__name__}"
            raise ConfigError(
                f"model {self._model.name}", expected=f"a dict from {self._name}", received=received
            )
        self._logs = {
            name: dict.fromkeys(value) if isinstance(value, dict) else None for name, value in result.items()
        }
        logs = tuple(self._reduced(value) for value in tf.nest.flatten(result))
        for log in logs:
            check_log(f"{self._name} of model {self._model.name}", log)
        return Totals(logs, self.empty_totals().stats)

    def _averages(self) -> contextlib.AbstractContextManager[None]:
        is_alone = is_keras_2(self._model) and self._strategy.num_replicas_in_sync == 1
        return losses_may_average(keras_of(self._model)) if is_alone else contextlib.nullcontext()

    def _reduced(self, value: Any) -> tf.Tensor:
        # Metrics of Keras 2 reduce over the replicas in result(), which returns one value.
        is_alone = self._strategy.num_replicas_in_sync == 1 or tf.is_tensor(value)
        several = has_mirrored_workers(self._strategy) and worker_count(self._strategy) > 1
        if is_alone and not several:
            return tf.convert_to_tensor(value)
        return self._strategy.reduce(tf.distribute.ReduceOp.SUM, value, axis=None)
