import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from tfdist._utils.keras_2_and_3 import is_keras_2  # noqa: E402
from tfdist.errors import ConfigError  # noqa: E402
from tfdist.trainer import equivalence  # noqa: E402
from tfdist.trainer.equivalence import compare  # noqa: E402


@pytest.fixture
def write(tmp_path):
    def write(name, losses, kernel, **others):
        path, variables = tmp_path / f"{name}.npz", {"kernel": kernel, **others}
        arrays = {str(index): np.array(values) for index, values in enumerate(variables.values())}
        are_trained = [not name.startswith("moving") for name in variables]
        np.savez(path, losses=losses, names=[*variables], are_trained=are_trained, **arrays)
        return path

    return write


def test_equal_records_are_equal(write):
    one = write("one", [2.0, 1.0], [[1.0, -4.0], [2.0, 3.0]])
    assert [(each.step, each.worst, each.is_allowed) for each in compare(one, one, one, "float64")] == [
        (1, 0.0, True),
        (2, 0.0, True),
    ]


def test_the_worst_is_named_relative_to_the_largest_number(write):
    one = write("one", [2.0, 1.0], [[1.0, -4.0], [2.0, 3.0]])
    other = write("other", [2.0, 1.0 + 2e-10], [[1.0 + 4e-9, -4.0], [2.0, 3.0]])
    first, second = compare(one, other, one, "float64")
    assert (first.where, second.where) == ("kernel", "loss")
    assert first.worst == pytest.approx(1e-9)
    assert second.worst == pytest.approx(2e-10)
    assert not first.is_allowed
    assert not second.is_allowed
    assert second.other_loss - second.loss == pytest.approx(2e-10)


@pytest.mark.parametrize("reordered", [1.0, np.nan])
def test_what_is_not_a_number_never_passes(write, reordered):
    one = write("one", [1.0], [[1.0]])
    again = write("reordered", [1.0], [[reordered]])
    (found,) = compare(one, write("other", [1.0], [[np.nan]]), again, "float64")
    assert found.where == "kernel"
    assert not found.is_allowed


def test_an_order_that_changes_the_loss_excuses_no_cluster(write):
    one = write("one", [1.0], [[1.0]])
    reordered, other = write("reordered", [1.1], [[1.0]]), write("other", [1.05], [[1.0]])
    (found,) = compare(one, other, reordered, "float64")
    assert (found.where, found.is_allowed) == ("loss", False)


def test_in_float32_reordering_says_what_is_allowed(write):
    one = write("one", [1.0, 1.0], [[1.0], [1.0]])
    reordered = write("reordered", [1.0, 1.0 + 1e-5], [[1.0], [1.0]])
    near, far = (
        write("near", [1.0, 1.0 + 9e-5], [[1.0], [1.0]]),
        write("far", [1.0, 1.0 + 2e-4], [[1.0], [1.0]]),
    )
    assert [each.is_allowed for each in compare(one, near, reordered, "float32")] == [True, True]
    assert [each.is_allowed for each in compare(one, far, reordered, "float32")] == [True, False]


@pytest.mark.parametrize("numbers", ["float32", "float64"])
def test_a_bias_that_is_noise_allows_no_more_for_the_other_variables(write, numbers):
    one = write("one", [1.0], [[0.5, 0.1]], key_bias=[[3e-3, -1e-3]])
    reordered = write("reordered", [1.0], [[0.5, 0.1]], key_bias=[[-2e-3, 3e-3]])
    right = write("right", [1.0], [[0.5, 0.1]], key_bias=[[1e-3, -4e-3]])
    wrong = write("wrong", [1.0], [[-0.5, 0.1]], key_bias=[[3e-3, -1e-3]])
    assert [each.is_allowed for each in compare(one, right, reordered, numbers)] == [True]
    (found,) = compare(one, wrong, reordered, numbers)
    assert (found.where, found.worst, found.is_allowed) == ("kernel", 2.0, False)


@pytest.mark.parametrize("noise", [0.0, 6.9e-19])
def test_rounding_of_a_bias_that_is_not_trained_in_fact_is_no_difference(write, noise):
    kernel = [[0.5, 0.1]]
    one = write("one", [1.0], kernel, key_bias=[[noise]], moving_mean=[[1e9]])
    right = write("right", [1.0], kernel, key_bias=[[-7e-19]], moving_mean=[[1e9]])
    wrong = write("wrong", [1.0], kernel, key_bias=[[1e-11]], moving_mean=[[1e9]])
    assert [each.is_allowed for each in compare(one, right, one, "float64")] == [True]
    assert [(each.where, each.is_allowed) for each in compare(one, wrong, one, "float64")] == [
        ("key_bias", False)
    ]


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
