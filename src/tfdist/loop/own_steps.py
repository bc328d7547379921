"""Run a train_step or test_step that a model has of its own, as Keras's fit does."""

from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.errors import ConfigError
from tfdist.loop.executions import Totals, make_execution
from tfdist.loop.gauge import Failure
from tfdist.loop.generations import is_keras_2

__all__ = ["OwnStep"]


class OwnStep:
    """Run the model's own method on each replica's part of a batch; its totals are the last batch's logs.

    What it computes, and whether a replica's loss is divided by their number, is the model's affair. Keras 3
    averages what the replicas give, and Keras 2 adds it up; where it names all metrics of the model, and only
    those, the metrics' results are taken instead.
    """

    adds_up = False

    def __init__(
        self,
        model: Any,
        strategy: tf.distribute.Strategy,
        name: str,
        element_spec: Any,
        *,
        stops_at_failure: bool = False,
    ) -> None:
        self._model = model
        self._strategy = strategy
        self._name = name
        self._stops = stops_at_failure
        self._logs: dict[str, Any] = {}
        is_old = is_keras_2(model)
        self._reduction = tf.distribute.ReduceOp.SUM if is_old else tf.distribute.ReduceOp.MEAN
        # Keras 2 lets AutoGraph convert the user's steps where it is on, and Keras 3 does not.
        self._call = tf.autograph.to_graph(_call) if is_old else _call
        self._one: Any = self._run
        self._more: Any = None
        if not model.run_eagerly:
            # It may make variables as it is first traced, which TensorFlow allows in no loop.
            self._one = tf.function(self._run, autograph=False, input_signature=[element_spec])
            self._more = tf.function(self._loop, autograph=False, reduce_retracing=True)

    def no_totals(self) -> Totals:
        """Give no logs."""
        return ()

    def execution(
        self, iterator: Any, steps: tf.Tensor, totals: Totals
    ) -> tuple[tf.Tensor, Totals, tf.Tensor]:
        """Take up to so many steps on an iterator; give how many there was data for, and the last one's logs.

        A loop in a graph has to know ahead what each step gives: so the first step ever is no part of one.
        The seconds that were waited for data are those of the loop.
        """
        done, waited = 0, tf.zeros([], tf.float64)
        while done < int(steps) and (self._more is None or not self._logs):
            batch = iterator.get_next_as_optional()
            if not batch.has_value():
                return tf.constant(done), totals, waited
            totals, done = self._one(batch.get_value()), done + 1
            if self._stops and self.is_failing(totals):
                return tf.constant(done), totals, waited
        if self._more is None:
            return tf.constant(done), totals, waited
        if not totals:
            specs = self._one.get_concrete_function().structured_outputs
            totals = tuple(tf.zeros(each.shape, each.dtype) for each in specs)
        ran, totals, waited = self._more(iterator, steps - done, totals)
        return done + ran, totals, waited

    def results(self, totals: Totals) -> dict[str, Any]:
        """Give the logs, or the metrics' results where the logs are those."""
        with self._strategy.scope():
            if is_keras_2(self._model):
                metrics = {each.name: each.result() for each in self._model.metrics}
            else:
                metrics = self._model.get_metrics_result()
        if set(metrics) == set(self._logs):
            return metrics
        # Logs may hold the results of all compiled metrics under one name.
        found = tf.nest.pack_sequence_as(self._logs, totals)
        parts = [value if isinstance(value, dict) else {name: value} for name, value in found.items()]
        return {name: value for part in parts for name, value in part.items()}

    def times(self, totals: Totals) -> None:
        """Give nothing: where its computing ends and its waiting begins, the model alone knows."""
        del totals

    def is_failing(self, totals: Totals) -> tf.Tensor:
        """Say whether what the logs call the loss is no number."""
        finite = [tf.reduce_all(tf.math.is_finite(each)) for each in self._losses(totals)]
        return tf.logical_not(tf.reduce_all(finite))

    def failure(self, totals: Totals) -> Failure | None:
        """Say that the loss is no number, if so; on which replica is not in the logs."""
        losses = [np.asarray(each) for each in self._losses(totals)]
        if all(np.isfinite(each).all() for each in losses):
            return None
        return Failure("NaN" if any(np.isnan(each).any() for each in losses) else "infinite")

    def _losses(self, totals: Totals) -> list[Any]:
        found = tf.nest.pack_sequence_as(self._logs, totals) if totals else {}
        return [each for each in tf.nest.flatten(found.get("loss", ())) if each.dtype.is_floating]

    def reset(self) -> None:
        """Start the metrics anew."""
        with self._strategy.scope():
            self._model.reset_metrics()

    def _loop(self, iterator: Any, steps: tf.Tensor, totals: Totals) -> tuple[tf.Tensor, Totals, tf.Tensor]:
        is_failing = self.is_failing if self._stops else None
        execution = make_execution(self._run, adds=self.adds_up, is_failing=is_failing)
        return execution(iterator, steps, totals)

    def _run(self, batch: Any) -> Totals:
        step = getattr(self._model, self._name)
        if self._model.jit_compile:
            found = self._strategy.run(tf.function(step, jit_compile=True, autograph=False), args=(batch,))
        else:
            found = self._strategy.run(self._call, args=(step, batch))
        if not isinstance(found, dict):
            received = f"a {type(found).__name__}"
            raise ConfigError(
                f"model {self._model.name}", expected=f"a dict from {self._name}", received=received
            )
        self._logs = {
            name: dict.fromkeys(value) if isinstance(value, dict) else None for name, value in found.items()
        }
        return tuple(self._reduced(value) for value in tf.nest.flatten(found))

    def _reduced(self, value: Any) -> tf.Tensor:
        # Metrics of Keras 2 meet while they give their results, and are then one value already.
        is_alone = self._strategy.num_replicas_in_sync == 1 or tf.is_tensor(value)
        several = isinstance(self._strategy, tf.distribute.MultiWorkerMirroredStrategy)
        if is_alone and not several:
            return tf.convert_to_tensor(value)
        return self._strategy.reduce(self._reduction, value, axis=None)


def _call(step: Any, data: Any) -> Any:
    return step(data)
