import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from tfdist._utils.keras_2_and_3 import is_keras_2  # noqa: E402
from tfdist.errors import ConfigError  # noqa: E402
from tfdist.trainer import equivalence  # noqa: E402
from tfdist.trainer.equivalence import compare  # noqa: E402


@pytest.fixture
def write(tmp_path):
    def write(name, losses, weights):
        path = tmp_path / f"{name}.npz"
        np.savez(path, losses=np.array(losses), names=np.array(["kernel"]), **{"0": np.array(weights)})
        return path

    return write


def test_equal_records_are_equal(write):
    one = write("one", [2.0, 1.0], [[1.0, -4.0], [2.0, 3.0]])
    assert [(each.step, each.worst, each.is_allowed) for each in compare(one, one, None)] == [
        (1, 0.0, True),
        (2, 0.0, True),
    ]


def test_the_worst_is_named_relative_to_the_largest_number(write):
    one = write("one", [2.0, 1.0], [[1.0, -4.0], [2.0, 3.0]])
    other = write("other", [2.0, 1.0 + 2e-10], [[1.0 + 4e-9, -4.0], [2.0, 3.0]])
    first, second = compare(one, other, None)
    assert (first.where, second.where) == ("kernel", "loss")
    assert first.worst == pytest.approx(1e-9)
    assert second.worst == pytest.approx(2e-10)
    assert not first.is_allowed
    assert not second.is_allowed
    assert second.other_loss - second.loss == pytest.approx(2e-10)


def test_what_is_not_a_number_never_passes(write):
    one = write("one", [1.0], [[1.0]])
    (found,) = compare(one, write("other", [1.0], [[np.nan]]), None)
    assert found.where == "kernel"
    assert not found.is_allowed


def test_in_float32_reordering_says_what_is_allowed(write):
    one = write("one", [1.0, 1.0], [[1.0], [1.0]])
    reordered = write("reordered", [1.0, 1.0 + 1e-5], [[1.0], [1.0]])
    near, far = (
        write("near", [1.0, 1.0 + 9e-5], [[1.0], [1.0]]),
        write("far", [1.0, 1.0 + 2e-4], [[1.0], [1.0]]),
    )
    assert [each.is_allowed for each in compare(one, near, reordered)] == [True, True]
    assert [each.is_allowed for each in compare(one, far, reordered)] == [True, False]


def test_dropout_inside_of_a_custom_layer_is_switched_off():
    class Block(tf.keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.drop = tf.keras.layers.Dropout(0.5)

        def call(self, inputs):
            return self.drop(inputs)

    model = tf.keras.Sequential([tf.keras.Input((4,)), Block()])
    equivalence._switch_dropout_off(model)
    assert model.layers[-1].drop.rate == 0.0


def test_dropout_of_recurrent_layers_is_switched_off():
    layers = tf.keras.layers
    recurrent = [
        layers.LSTM(3, dropout=0.5, return_sequences=True),
        layers.Bidirectional(layers.GRU(3, recurrent_dropout=0.5, return_sequences=True)),
        layers.RNN(
            [layers.LSTMCell(3, dropout=0.5), layers.SimpleRNNCell(3, dropout=0.5)], return_sequences=True
        ),
    ]
    inputs = tf.keras.Input((4, 2))
    outputs = inputs
    for layer in recurrent:
        outputs = layer(outputs)
    model = tf.keras.Model(inputs, layers.MultiHeadAttention(1, 2, dropout=0.5)(outputs, outputs))
    equivalence._switch_dropout_off(model)
    x = np.random.default_rng(0).normal(size=(3, 4, 2)).astype("float32")
    assert np.array_equal(model(x, training=True), model(x, training=True))
    assert np.allclose(model(x, training=True), model(x, training=False), atol=1e-6)


@pytest.mark.skipif(
    is_keras_2(tf.keras.Sequential()), reason="layers of Keras 2 do not name their generators"
)
@pytest.mark.parametrize("name", ["GaussianNoise", "RandomRotation"])
def test_another_layer_that_draws_is_refused(name):
    model = tf.keras.Sequential(
        [tf.keras.Input((4, 4, 1)), getattr(tf.keras.layers, name)(0.5, name="draws")]
    )
    with pytest.raises(ConfigError, match=r"^layer draws: draws random numbers, on each replica its own"):
        equivalence._switch_dropout_off(model)
