"""Layers that are computed again for their gradients, or in a branch or a loop, compute as in Keras's own fit."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from again import again  # noqa: E402  # after the check that TensorFlow is there
from several_devices import HAS_SEVERAL, WITH_AGAIN, own_strategy, run_on_several  # noqa: E402  # after the check that TensorFlow is there
from tfdist.errors import ConfigError  # noqa: E402
from tfdist.training.fit import fit  # noqa: E402

keras = tf.keras
pytestmark = [
    pytest.mark.skipif(keras.__version__ < "3", reason="only steps of Keras 3 catch what layers write"),
    pytest.mark.usefixtures("in_float64"),
]
RNG = np.random.default_rng(1)
X, Y = RNG.normal(size=(12, 4)), RNG.normal(size=(12, 2))


@pytest.fixture(scope="module")
def strategy():
    return own_strategy()


@pytest.mark.skipif(HAS_SEVERAL, reason="this is what it starts")
@pytest.mark.usefixtures("forking")
@pytest.mark.parametrize("words", WITH_AGAIN)
def test_all_of_this_holds_on_several_devices(words):
    run_on_several(__file__, words)


def fit_of_keras(model, *args, **options):
    return model.fit(*args, **options)


def trained(model, by, x, y, weights=None):
    """Train a model; return its losses and its weights."""
    options = {"batch_size": 4, "epochs": 2, "shuffle": False, "verbose": 0, "sample_weight": weights}
    losses = by(model, x, y, **options).history["loss"]
    return losses, model.get_weights()


def assert_are_same(found, expected):
    assert found[0] == pytest.approx(expected[0], rel=1e-6)  # Keras adds up its logs in float32
    for mine, its in zip(found[1], expected[1], strict=True):
        assert mine == pytest.approx(its, rel=1e-9, abs=1e-11)


class Block(keras.layers.Layer):
    """Layers that are computed again for their gradients, if they are recomputed."""

    def __init__(self, layers, is_recomputed):
        super().__init__()
        self.layers, self.is_recomputed = layers, is_recomputed

    def build(self, shape):
        for layer in self.layers:
            layer.build(shape)

    def call(self, inputs, training=False):
        def call(inputs):
            for layer in self.layers:
                inputs = layer(
                    inputs, **({} if isinstance(layer, keras.layers.Dense) else {"training": training})
                )
            return inputs

        return (tf.recompute_grad(call) if self.is_recomputed else call)(inputs)

    def compute_output_shape(self, shape):
        return shape


def with_block(kind, is_recomputed, outputs=1):
    keras.utils.set_random_seed(1)
    other = {
        "penalty": [],
        "dropout": [keras.layers.Dropout(0.4, seed=3)],
        "normalization": [keras.layers.BatchNormalization()],
    }[kind]
    penalty = keras.regularizers.L2(0.01) if kind == "penalty" else None
    block = Block([keras.layers.Dense(4, kernel_regularizer=penalty), *other], is_recomputed)
    inputs = keras.Input((4,))
    hidden = block(inputs)
    model = keras.Model(inputs, [keras.layers.Dense(2)(hidden) for _ in range(outputs)])
    model.compile(keras.optimizers.SGD(0.1), ["mse"] * outputs)
    return model


def test_each_part_of_a_loss_belongs_to_the_same_masks(strategy):
    # Their divisors differ, so several replicas compute gradients of each.
    weights = (RNG.uniform(size=12), RNG.uniform(size=12) > 0.5)
    with strategy.scope():
        expected, found = (
            trained(with_block("dropout", is_recomputed, 2), fit, X, (Y, Y), weights)
            for is_recomputed in (False, True)
        )
    assert_are_same(found, expected)


@pytest.mark.parametrize("kind", ["penalty", "dropout", "normalization"])
def test_layers_that_are_recomputed_train_as_if_they_were_not(strategy, kind):
    # Keras draws other masks, and writes moving averages again, when it computes layers again.
    if HAS_SEVERAL and kind != "penalty":  # replicas have masks and moments of their own
        with strategy.scope():
            expected = trained(with_block(kind, is_recomputed=False), fit, X, Y)
    else:
        model = with_block(kind, is_recomputed=kind == "penalty")
        expected = trained(model, fit_of_keras, X, Y)
    with strategy.scope():
        found = trained(with_block(kind, is_recomputed=True), fit, X, Y)
    assert_are_same(found, expected)


class Cell(keras.layers.Layer):
    """A recurrent cell that drops, and counts its calls."""

    def __init__(self):
        super().__init__()
        self.state_size = 3
        self.dense = keras.layers.Dense(3, activation="tanh")
        self.dropout = keras.layers.Dropout(0.4, seed=3)

    def build(self, shape):
        self.dense.build((shape[0], shape[-1] + 3))
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, inputs, states, training=False):
        self.calls.assign_add(1.0)
        hidden = self.dense(keras.ops.concatenate([inputs, states[0]], axis=-1))
        hidden = self.dropout(hidden, training=training)
        return hidden, [hidden * keras.ops.tanh(self.calls)]


class Looping(keras.layers.Layer):
    """A cell that is called three times, in a loop if there is one."""

    def __init__(self, has_loop):
        super().__init__()
        self.has_loop, self.cell = has_loop, Cell()

    def build(self, shape):
        self.cell.build(shape)

    def call(self, inputs, training=False):
        def call(_, state):
            return self.cell(inputs, [state], training=training)[0]

        state = keras.ops.zeros_like(inputs)[:, :3]
        if self.has_loop:
            return keras.ops.fori_loop(0, 3, call, state)
        for number in range(3):
            state = call(number, state)
        return state


class Branching(keras.layers.Layer):
    """Layers in a branch that is always taken, if there is a branch."""

    def __init__(self, has_branch):
        super().__init__()
        self.has_branch = has_branch
        self.dense, self.normalization = keras.layers.Dense(3), keras.layers.BatchNormalization()
        self.dropout = keras.layers.Dropout(0.4, seed=3)

    def build(self, shape):
        self.dense.build(shape)
        self.normalization.build((None, 3))

    def call(self, inputs, training=False):
        # It draws before and after the branch too.
        hidden = self.dropout(self.dense(inputs), training=training)

        def call():
            return self.dropout(self.normalization(hidden, training=training), training=training)

        if self.has_branch:
            hidden = keras.ops.cond(keras.ops.sum(inputs) > -1e9, call, lambda: hidden)
        else:
            hidden = call()
        return self.dropout(hidden, training=training)


class OwnStep(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


def with_layer(layer, kind=keras.Model, shape=(4,), **options):
    inputs = keras.Input(shape)
    model = kind(inputs, keras.layers.Dense(2)(layer(inputs)))
    model.compile(keras.optimizers.SGD(0.1), "mse", **options)
    return model


def made(kind, is_within=True):
    """Return a model that writes in a branch or a loop, or one that computes the same without it."""
    keras.utils.set_random_seed(1)
    if kind == "loop":
        return with_layer(Looping(is_within))
    return with_layer(Branching(is_within), OwnStep if kind == "branch of an own step" else keras.Model)


@pytest.mark.parametrize("kind", ["loop", again("branch"), "branch of an own step"])
def test_layers_write_and_draw_in_branches_and_loops(strategy, kind):
    if HAS_SEVERAL:  # replicas have masks and moments of their own
        with strategy.scope():
            expected = trained(made(kind, is_within=False), fit, X, Y)
    else:
        expected = trained(made(kind), fit_of_keras, X, Y)
    with strategy.scope():
        found = trained(made(kind), fit, X, Y)
    assert_are_same(found, expected)


@pytest.mark.parametrize("jit_compile", [again(False), True])
def test_a_recurrent_cell_writes_and_draws_in_a_loop(strategy, jit_compile):
    def made():
        keras.utils.set_random_seed(1)
        return with_layer(keras.layers.RNN(Cell()), shape=(2, 2), jit_compile=jit_compile)

    series = X.reshape(12, 2, 2)
    with strategy.scope():
        ours = made()
    if HAS_SEVERAL and jit_compile:
        with pytest.raises(ConfigError, match=r"layer Cell: writes .* in a branch or a loop"):
            fit(ours, series, Y, batch_size=4, verbose=0)
        return
    found, expected = trained(ours, fit, series, Y), trained(made(), fit_of_keras, series, Y)
    if HAS_SEVERAL:  # replicas have masks of their own
        assert ours.layers[1].cell.calls.numpy() == 18  # a first call, and one for each step
    else:
        assert_are_same(found, expected)
