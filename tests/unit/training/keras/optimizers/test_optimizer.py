"""Rows are added up in advance where the update stays the same, and a method that a class overrides is called."""

import functools
import types

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
keras = tf.keras

from tfdist.errors import ConfigError  # noqa: E402
from tfdist.training.fit import fit  # noqa: E402
from tfdist.training.keras.optimizers.lazy_adam import LazyAdam  # noqa: E402
from tfdist.training.keras.optimizers.optimizer import Update, adds_rows_up  # noqa: E402

pytestmark = pytest.mark.skipif(keras.__version__ < "3", reason="tfdist updates weights itself with Keras 3")


class Own(keras.optimizers.SGD):
    """An optimizer that may do anything."""


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: keras.optimizers.SGD(0.1), True),
        (lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True), True),
        (lambda: LazyAdam(0.1), True),
        (lambda: keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(0.1)), True),
        (lambda: keras.optimizers.SGD(0.1, clipnorm=1.0), False),
        (lambda: keras.optimizers.SGD(0.1, clipvalue=1.0), False),
        (lambda: LazyAdam(0.1, global_clipnorm=1.0), False),
        (lambda: keras.optimizers.Adam(0.1), False),
        (lambda: keras.optimizers.Adagrad(0.1), False),
        (lambda: Own(0.1), False),
    ],
)
def test_rows_are_added_up_where_the_update_is_linear(make, expected):
    assert adds_rows_up(make()) is expected


class Centered(keras.optimizers.SGD):
    """An optimizer that changes gradients where Keras's own `fit` calls it."""

    def apply_gradients(self, grads_and_vars):
        pairs = [(gradient - tf.reduce_mean(gradient), variable) for gradient, variable in grads_and_vars]
        return super().apply_gradients(pairs)


def test_gradients_are_applied_by_the_method_that_a_class_overrides():
    x = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
    weights = []
    for train in (keras.Model.fit, fit):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        model.compile(Centered(0.1), "mse")
        train(model, x, x[:, :2], epochs=2, batch_size=4, shuffle=False, verbose=0)
        weights.append(model.get_weights()[0])
    assert weights[1] == pytest.approx(weights[0], rel=1e-6)
    model.compile(Centered(0.1, gradient_accumulation_steps=2), "mse")
    with pytest.raises(ConfigError, match="optimizer: overrides how gradients are applied"):
        fit(model, x, x[:, :2], verbose=0)


def test_a_step_that_is_traced_again_notes_itself_though_another_one_was_made():
    optimizer, weight = keras.optimizers.SGD(0.1), keras.Variable(np.ones([3], "float32"))
    optimizer.build([weight])
    before, noted = dict(vars(optimizer.iterations)), []

    def traced(name):
        applied = types.SimpleNamespace(
            are_noted_by_update=True,
            note_step=functools.partial(noted.append, name),
            refuse_if_given_up=list,
        )
        update = Update(tf.distribute.get_strategy(), optimizer, [weight], applied=applied)
        return tf.function(lambda gradient: update.apply([gradient], None), autograph=False)

    first, second = traced("first"), traced("second")
    for step, rows in ((first, 3), (second, 3), (first, [3])):
        step.get_concrete_function(tf.TensorSpec([3] if rows == 3 else [None]))
    assert noted == ["first", "second", "first"]
    assert vars(optimizer.iterations) == before
