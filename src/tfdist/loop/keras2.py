"""Do one step with a Keras 2 model."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.errors import ConfigError
from tfdist.loop.biases import biases_apart
from tfdist.loop.checks import reductions
from tfdist.loop.fused import fuse_keras_2
from tfdist.loop.gauge import Failure, Gauge
from tfdist.loop.generations import keras_of
from tfdist.loop.randomness import drawing_apart
from tfdist.loop.sharing import batch_size, shared_mean, unpacked

__all__ = ["Keras2Step"]


class Keras2Step:
    """Train, test and predict on one batch; the metrics count for themselves.

    Keras 2 makes metrics and moving averages for tf.distribute: each replica writes its own copy, reading
    puts the copies together, and on a parameter server the additions are TensorFlow's own, atomic ones.
    """

    adds_up = True

    def __init__(self, model: Any, strategy: tf.distribute.Strategy) -> None:
        self._keras = keras_of(model)
        self._model = model
        self._strategy = strategy
        is_mean = reductions(model) != {"sum"}
        # Keras 2 divides a mean over examples by the number of replicas, and leaves a sum as it is.
        self._divided_by = float(strategy.num_replicas_in_sync) if is_mean else None
        # Keras 2 lets AutoGraph convert the user's layers and losses where it is on.
        self._forward = tf.autograph.to_graph(_forward)
        self._gauge = Gauge(strategy)
        _refuse_post(strategy)
        if model.optimizer is not None:
            fuse_keras_2(getattr(model.optimizer, "inner_optimizer", model.optimizer))

    def no_totals(self) -> tuple[tf.Tensor, ...]:
        """Give what is gauged alone: what is counted is in the metrics' own variables."""
        return (self._gauge.nothing(),)

    def results(self, totals: tuple[tf.Tensor, ...]) -> dict[str, Any]:
        """Give the metrics' results."""
        del totals
        with self._strategy.scope():
            return {each.name: each.result() for each in self._model.metrics}

    def times(self, totals: tuple[tf.Tensor, ...]) -> tf.Tensor:
        """Give the seconds and steps of each replica, or of each worker that goes at its own pace."""
        return totals[-1]

    def is_failing(self, totals: tuple[tf.Tensor, ...]) -> tf.Tensor:
        """Say, inside a graph, whether a loss was no number."""
        return self._gauge.is_failing(totals[-1])

    def failure(self, totals: tuple[tf.Tensor, ...]) -> Failure | None:
        """Say which replicas' losses were no numbers, if any."""
        return self._gauge.failure(totals[-1])

    def reset(self) -> None:
        """Start the metrics anew."""
        with self._strategy.scope():
            self._model.reset_metrics()

    def settle(self) -> None:
        """Give all replicas the same moving averages: each has its own until somebody reads them all."""
        with self._strategy.scope():
            for variable in self._model.non_trainable_variables:
                is_own = variable.synchronization == tf.VariableSynchronization.ON_READ
                if is_own and variable.aggregation == tf.VariableAggregation.MEAN:
                    variable.assign(tf.convert_to_tensor(variable))

    def train(self, batch: Any) -> tuple[tf.Tensor, ...]:
        """Train on a batch, each replica on its part."""
        seen = self._strategy.run(self._compiled(self._train_on_part), args=(batch,))
        return (self._strategy.experimental_local_results(seen)[0],)

    def test(self, batch: Any) -> tuple[tf.Tensor, ...]:
        """Test on a batch, each replica on its part."""
        self._strategy.run(self._compiled(self._test_on_part), args=(batch,))
        return self.no_totals()

    def _compiled(self, run: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Let XLA compile it, with the update of the variables as Keras 2 does, where the model says so."""
        if not self._model.jit_compile:
            return run
        compiled: Callable[[Any], Any] = tf.function(run, jit_compile=True, autograph=False)
        return compiled

    # -- in replica context --

    def _train_on_part(self, data: Any) -> tf.Tensor:
        model, optimizer = self._model, self._model.optimizer
        # XLA has no clock.
        begun, data = (None, data) if model.jit_compile else self._gauge.begun(data)
        x, y, sample_weight = unpacked(data)
        scales = hasattr(optimizer, "get_scaled_loss")
        with tf.GradientTape() as tape, drawing_apart(self._strategy):
            y_pred, loss = self._forward(model, x, y, sample_weight, training=True)
            mean = loss if self._divided_by is None else loss * self._divided_by
            scaled = optimizer.get_scaled_loss(mean) if scales else mean
        gradients = biases_apart(tape.gradient(scaled, model.trainable_variables))
        if scales:
            gradients = optimizer.get_unscaled_gradients(gradients)
        size = batch_size(x)
        weight = None if self._divided_by is None else size
        seen = self._gauge.ended(begun, gradients, loss)
        shared = shared_mean(gradients, [], [seen], size=size, weight=weight)
        optimizer.apply_gradients(
            zip(shared.gradients, model.trainable_variables, strict=True),
            experimental_aggregate_gradients=False,
        )
        model.compute_metrics(x, y, y_pred, sample_weight)
        return shared.sums[0]

    def _test_on_part(self, data: Any) -> None:
        x, y, sample_weight = unpacked(data)
        y_pred, _ = self._forward(self._model, x, y, sample_weight, training=False)
        self._model.compute_metrics(x, y, y_pred, sample_weight)


def _forward(model: Any, x: Any, y: Any, sample_weight: Any, training: bool) -> tuple[Any, Any]:
    y_pred = model(x, training=training)
    return y_pred, model.compute_loss(x, y, y_pred, sample_weight)


def _refuse_post(strategy: tf.distribute.Strategy) -> None:
    """Refuse what is asked for and cannot be: Keras 2 reads variables where they are."""
    if getattr(getattr(strategy, "post", None), "is_asked_for", False):
        problem = "brings variables of Keras 3 from their servers, and this model is one of Keras 2"
        raise ConfigError("communication.implementation tcp", problem, remedy="Say grpc, or leave it out")
