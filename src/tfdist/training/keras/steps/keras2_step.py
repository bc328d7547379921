"""Run one step of a Keras 2 model."""

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdist._utils.keras_2_and_3 import all_variables, as_in_keras
from tfdist._utils.nested_optimizers import without_loss_scale
from tfdist.errors import ConfigError
from tfdist.strategies.gradient_arithmetic import divided
from tfdist.strategies.strategy_classes import ps_transfer_of
from tfdist.training.keras.losses_and_metrics.keras2_masked_loss_divisors import masks_of_whole_batch
from tfdist.training.keras.losses_and_metrics.loss_checks import LossWarning
from tfdist.training.keras.model_facts import reductions, uses_xla
from tfdist.training.keras.optimizers.fused_sgd_and_adagrad import fused_keras_2
from tfdist.training.keras.rng import GraphSeed
from tfdist.training.keras.steps.bias_gradients import biases_apart
from tfdist.training.keras.steps.step_base import KerasStep, compiled
from tfdist.training.replicas.detect_paired_examples import depends_on_data
from tfdist.training.replicas.empty_replicas import or_zero
from tfdist.training.replicas.means_and_sums_in_graph import reduction_of
from tfdist.training.replicas.reduction import OfLoss, batch_size, rows_of, shared_mean, unpacked
from tfdist.training.runners.multi_step import Totals

_ADDED = (
    "loss: what add_loss or an activity regularizer adds is, as far as its graph shows, no mean over the"
    " examples; on several replicas the mean of their parts' values counts with Keras 2. Add a mean, or take"
    " Keras 3, which adds sums up"
)
_OF_PS = (tf.distribute.ParameterServerStrategy, tf.distribute.experimental.CentralStorageStrategy)


class Keras2Step(KerasStep):
    """A step that trains or tests a Keras 2 model on one batch; the metrics count in their own variables.

    Keras 2 makes metrics and moving averages for tf.distribute: each replica writes its own copy, and reading
    combines the copies. On a parameter server the additions are TensorFlow's own, atomic ones.
    """

    def __init__(self, model: Any, strategy: tf.distribute.Strategy) -> None:
        super().__init__(model, strategy)
        is_mean = reductions(model) != {"sum"}
        # Keras 2 divides a mean over examples by the number of replicas, and leaves a sum as it is.
        self._divided_by = float(strategy.num_replicas_in_sync) if is_mean else None
        self._forward = as_in_keras(model, _forward)
        self._compute_metrics = as_in_keras(model, model.compute_metrics)
        # Beside parameter servers, the optimizers of keras.optimizers.legacy always add gradients up.
        is_legacy = hasattr(model.optimizer, "get_updates")
        self._adds_up_again = is_legacy and isinstance(strategy, _OF_PS)
        self._warning = LossWarning()
        _refuse_tcp(strategy)

    def results(self, totals: Totals) -> dict[str, Any]:
        """Return the metrics' results."""
        del totals
        with self._strategy.scope():
            return {metric.name: metric.result() for metric in self._model.metrics}

    def end_epoch(self) -> None:
        """Assign the mean of the moving averages to all replicas, each of which has its own until then."""
        with self._strategy.scope():
            for variable in all_variables(self._model):
                is_own = variable.synchronization == tf.VariableSynchronization.ON_READ
                if is_own and variable.aggregation == tf.VariableAggregation.MEAN:
                    variable.assign(tf.convert_to_tensor(variable))

    def train(self, batch: Any, totals: Totals) -> Totals:
        """Train on a batch, each replica on its part."""
        optimizer = without_loss_scale(self._model.optimizer)
        with masks_of_whole_batch(self._model, self._strategy), fused_keras_2(optimizer):
            train_on_part = compiled(self._model, self._strategy, self._train_on_part)
            seen = self._strategy.run(train_on_part, args=(batch,))
        return Totals((), totals.stats + self._strategy.experimental_local_results(seen)[0])

    def test(self, batch: Any, totals: Totals) -> Totals:
        """Test on a batch, each replica on its part."""
        with masks_of_whole_batch(self._model, self._strategy):
            test_on_part = compiled(self._model, self._strategy, self._test_on_part)
            self._strategy.run(test_on_part, args=(batch,))
        return totals

    # -- in replica context --

    def _train_on_part(self, data: Any) -> tf.Tensor:
        model, optimizer = self._model, self._model.optimizer
        # XLA does not support reading a clock.
        begun, data = (None, data) if uses_xla(model, self._strategy) else self._replica_stats.begun(data)
        x, y, sample_weight = unpacked(data)
        scales = hasattr(optimizer, "get_scaled_loss")
        size = batch_size(x)
        with (
            self._counting(size),
            tf.GradientTape() as tape,
            GraphSeed(self._strategy).of_this_replica(),
        ):
            y_pred, loss = self._forward(model, x, y, sample_weight, training=True)
            mean = loss if self._divided_by is None else loss * self._divided_by
            scaled = optimizer.get_scaled_loss(mean) if scales else mean
        if self._divided_by is not None and rows_of(x) is None:
            self._warn_of_added_losses()
        gradients = biases_apart(tape.gradient(scaled, model.trainable_variables))
        if scales:
            gradients = optimizer.get_unscaled_gradients(gradients)
        weight = None if self._divided_by is None else size
        seen = self._replica_stats.ended(begun, gradients, or_zero(loss, size), size)
        shared = shared_mean([OfLoss(gradients, weight)], [], [seen], size=size)
        gradients = shared.gradients
        if self._adds_up_again:
            gradients = [divided(gradient, self._strategy.num_replicas_in_sync) for gradient in gradients]
        optimizer.apply_gradients(
            zip(gradients, model.trainable_variables, strict=True),
            experimental_aggregate_gradients=self._adds_up_again,
        )
        with self._counting(size):
            self._compute_metrics(x, y, y_pred, sample_weight)
        return shared.sums[0]

    @contextlib.contextmanager
    def _counting(self, size: tf.Tensor) -> Iterator[None]:
        """Count nothing within the block on a replica without examples, of which the means are NaN."""
        is_shared = self._strategy.num_replicas_in_sync > 1 and not isinstance(self._strategy, _OF_PS)
        metrics = self._model.metrics if is_shared else []
        variables = [variable for metric in metrics for variable in metric.variables]
        before = [tf.identity(variable) for variable in variables]
        yield
        for variable, value in zip(variables, before, strict=True):
            variable.assign(tf.where(size > 0, variable, value))

    def _warn_of_added_losses(self) -> None:
        """Warn once of an added loss whose parts are averaged though it is no mean over the examples."""
        if self._strategy.num_replicas_in_sync == 1 or tf.executing_eagerly():
            return
        others = [loss for loss in self._model.losses if reduction_of(loss) not in ("mean", "same")]
        if any(map(depends_on_data, others)):
            self._warning.log(_ADDED)

    def _test_on_part(self, data: Any) -> None:
        x, y, sample_weight = unpacked(data)
        with self._counting(batch_size(x)):
            y_pred, _ = self._forward(self._model, x, y, sample_weight, training=False)
            self._compute_metrics(x, y, y_pred, sample_weight)


def _forward(model: Any, x: Any, y: Any, sample_weight: Any, training: bool) -> tuple[Any, Any]:
    y_pred = model(x, training=training)
    return y_pred, model.compute_loss(x, y, y_pred, sample_weight)


def _refuse_tcp(strategy: tf.distribute.Strategy) -> None:
    """Refuse the TCP transport if the user asks for it: Keras 2 reads variables where they are."""
    ps_transfer = ps_transfer_of(strategy)
    if ps_transfer is not None and ps_transfer.is_asked_for:
        problem = "is not supported with models of Keras 2"
        raise ConfigError("communication.implementation tcp", problem, remedy="Set grpc, or leave it out")
