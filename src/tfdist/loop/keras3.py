"""Do one step with a Keras 3 model: a replica's part of it is a pure function of variables and data.

`keras.StatelessScope` catches what the forward pass and the metrics would write. Nothing is therefore updated
by racing reads and writes (Keras 3's `assign_add` is a read, an add and a write), and what the replicas
found is put together before any variable changes.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.loop.checks import reductions
from tfdist.loop.generations import keras_of
from tfdist.loop.sharing import batch_size, shared_mean, unpacked

__all__ = ["Keras3Step"]


class Keras3Step:
    """Train, test and predict on one batch, and say what to add to the metrics."""

    def __init__(self, model: Any, strategy: tf.distribute.Strategy, element_spec: Any) -> None:
        self._keras = keras_of(model)
        self._model = model
        self._strategy = strategy
        self._is_mean = reductions(model) != {"sum"}
        # Keras 3 makes a float32 of 1/N, also where it computes in float64.
        self._share = float(np.float32(1.0 / strategy.num_replicas_in_sync))
        with strategy.scope():
            model._symbolic_build(data_batch=element_spec)
        self._metrics = list(model.metrics_variables)
        self._state = list(model.non_trainable_variables)
        if model.optimizer is not None:
            _count_exactly(model.optimizer)

    def no_totals(self) -> tuple[tf.Tensor, ...]:
        """Give the sums that a metric starts from."""
        return tuple(tf.zeros(each.shape, tf.float64) for each in self._metrics)

    def results(self, totals: tuple[tf.Tensor, ...]) -> dict[str, Any]:
        """Give the metrics' results from what was added up."""
        mapping = [
            (variable, tf.cast(total, variable.dtype))
            for variable, total in zip(self._metrics, totals, strict=True)
        ]
        with self._keras.StatelessScope(mapping):
            logs: dict[str, Any] = self._model.get_metrics_result()
        return logs

    def reset(self) -> None:
        """Start the metrics anew."""
        self._model.reset_metrics()

    def train(self, batch: Any) -> tuple[tf.Tensor, ...]:
        """Train on a batch, each replica on its part; give what it adds to the totals."""
        with _reduced_already(self._model.optimizer):
            per_replica = self._strategy.run(self._train_on_part, args=(batch,))
        state, sums = (
            [self._strategy.experimental_local_results(each)[0] for each in part] for part in per_replica
        )
        for variable, value in zip(self._touched, state, strict=True):
            variable.value.assign(tf.cast(value, variable.dtype))
        return tuple(sums)

    def test(self, batch: Any) -> tuple[tf.Tensor, ...]:
        """Test on a batch, each replica on its part; give what it adds to the totals."""
        sums = self._strategy.run(self._test_on_part, args=(batch,))
        return tuple(self._strategy.experimental_local_results(each)[0] for each in sums)

    # -- in replica context --

    def _train_on_part(self, data: Any) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        x, _, _ = unpacked(data)
        gradients, state, sums = self._if_any(lambda: self._compiled(self._gradients)(data), x)
        gradients, state, sums = shared_mean(
            gradients, state, sums, batch_size(x), share=self._share if self._is_mean else None
        )
        self._model.optimizer.apply(gradients, self._model.trainable_variables)
        return state, sums

    def _test_on_part(self, data: Any) -> list[tf.Tensor]:
        x, _, _ = unpacked(data)
        sums = self._if_any(lambda: self._compiled(self._tested)(data), x)
        return shared_mean([], [], sums, batch_size(x), share=None)[2]

    def _compiled(self, compute: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Let XLA compile it where the model asks for it: anew in each replica, which has its own ones."""
        if not self._model.jit_compile:
            return compute
        compiled: Callable[[Any], Any] = tf.function(compute, jit_compile=True, autograph=False)
        return compiled

    def _gradients(self, data: Any) -> tuple[list[Any], list[tf.Tensor], list[tf.Tensor]]:
        model = self._model
        with tf.GradientTape() as tape, self._scope() as scope:
            loss = self._forward(data, training=True)
            if model.optimizer is not None:
                loss = model.optimizer.scale_loss(loss)
        gradients = tape.gradient(loss, [each.value for each in model.trainable_variables])
        self._touched = [each for each in self._state if scope.get_current_value(each) is not None]
        state = [tf.convert_to_tensor(scope.get_current_value(each)) for each in self._touched]
        return gradients, state, self._sums(scope, data)

    def _tested(self, data: Any) -> list[tf.Tensor]:
        with self._scope() as scope:
            self._forward(data, training=False)
            return self._sums(scope, data)

    def _forward(self, data: Any, *, training: bool) -> Any:
        model = self._model
        x, y, sample_weight = unpacked(data)
        y_pred = model(x, training=training) if model._call_has_training_arg else model(x)
        loss = model._compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=training)
        unscaled = loss / tf.cast(self._share, loss.dtype)
        model._loss_tracker.update_state(unscaled, sample_weight=batch_size(x))
        model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
        return loss

    def _scope(self) -> Any:
        # Metrics begin from nothing. Penalties on weights ask the scope, and it alone, for the weights.
        penalized = [each for each in self._model.trainable_variables if each.regularizer is not None]
        metrics = [(each, tf.zeros(each.shape, each.dtype)) for each in self._metrics]
        weights = [(each, tf.convert_to_tensor(each.value)) for each in penalized]
        return self._keras.StatelessScope(metrics + weights, collect_losses=True)

    def _sums(self, scope: Any, data: Any) -> list[tf.Tensor]:
        """Give what the metrics counted."""
        found = {id(each): tf.cast(scope.get_current_value(each), tf.float64) for each in self._metrics}
        x, _, _ = unpacked(data)
        trackers = self._model._compile_loss.metrics if self._model._compile_loss is not None else []
        if self._is_mean:
            replicas = self._strategy.num_replicas_in_sync
            for each in trackers:  # Keras multiplies with N what it has multiplied with its share
                found[id(each.total)] /= replicas * self._share
        if next(each for each in tf.nest.flatten(x) if each is not None).shape[0] is None:
            # Keras weighs the loss of each of several outputs by the batch size where it knows that ahead,
            # and else counts every batch as one.
            for each in (variable for tracker in trackers for variable in tracker.variables):
                found[id(each)] *= tf.cast(batch_size(x), tf.float64)
        return [found[id(each)] for each in self._metrics]

    def _if_any(self, compute: Callable[[], Any], x: Any) -> Any:
        """Compute on this replica's examples; where it has none, give zeros of the same shapes.

        TensorFlow hands empty batches to the replicas whose data ended before the others', and the means
        of nothing are not numbers.
        """
        if self._strategy.num_replicas_in_sync == 1:
            return compute()
        traced: list[Any] = []

        def flat() -> list[tf.Tensor]:
            traced[:] = [compute()]
            return [
                tf.convert_to_tensor(each)
                for each in tf.nest.flatten(traced[0], expand_composites=True)
                if each is not None
            ]

        def zeros() -> list[tf.Tensor]:
            parts = tf.nest.flatten(traced[0], expand_composites=True)
            return [
                tf.zeros([size or 0 for size in each.shape], each.dtype) for each in parts if each is not None
            ]

        # The true branch is traced first, and shows the false one what to give.
        found = iter(tf.cond(batch_size(x) > 0, flat, zeros))
        parts = tf.nest.flatten(traced[0], expand_composites=True)
        return tf.nest.pack_sequence_as(
            traced[0], [None if each is None else next(found) for each in parts], expand_composites=True
        )


@contextlib.contextmanager
def _reduced_already(optimizer: Any) -> Iterator[None]:
    """Keep the optimizer from adding gradients up over the replicas: they are the global ones already.

    Keras 3 clips and accumulates each replica's gradients before it adds them up, which is another clipping
    than one process does on the whole batch; and it has no argument to leave the adding out.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    inner._all_reduce_sum_gradients = lambda grads_and_vars: grads_and_vars
    try:
        yield
    finally:
        del inner._all_reduce_sum_gradients


def _count_exactly(optimizer: Any) -> None:
    """Let the optimizer count its steps by TensorFlow's own, atomic assign_add.

    Keras 3's is `assign(self + value)`: of two workers that count at once, one is lost.
    """
    variable = optimizer.iterations
    variable.assign_add = lambda value: variable.value.assign_add(tf.cast(value, variable.dtype))
