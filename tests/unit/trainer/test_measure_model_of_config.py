"""The sizes of models that are built and traced, against numbers that follow from their layers."""

import msgspec
import pytest
import tensorflow as tf

from tfdist.trainer.config import Config
from tfdist.trainer.measure_model_of_config import measure_model

layers = tf.keras.layers
IS_KERAS_2 = tf.keras.__version__.startswith("2.")


def dense(image_shape, classes):
    return tf.keras.Sequential(
        [tf.keras.Input(image_shape), layers.Flatten(), layers.Dense(50, "relu"), layers.Dense(classes)]
    )


def table(image_shape, classes):
    return tf.keras.Sequential(
        [
            tf.keras.Input(image_shape),
            layers.Flatten(),
            layers.Embedding(256, 8),
            layers.Flatten(),
            layers.Dense(classes),
        ]
    )


class Own(tf.keras.Model):
    """A model without a graph of layers."""

    def __init__(self):
        super().__init__()
        self._flatten, self._table, self._dense = layers.Flatten(), layers.Embedding(256, 8), layers.Dense(10)

    def call(self, images, training=False):
        return self._dense(self._flatten(self._table(self._flatten(images))))


def own(image_shape, classes):
    return Own()


def _measured(name, examples=32, **train):
    sections = {
        "data": {"name": "digits"},
        "model": {"name": f"{__name__}:{name}"},
        "train": train,
    }
    return measure_model(msgspec.convert(sections, Config), examples)


def test_dense_layers_have_the_sizes_of_their_shapes():
    sizes = _measured("dense")
    [first, bias, second, last] = sizes.variables
    assert [each.shape for each in sizes.variables] == [(784, 50), (50,), (50, 10), (10,)]
    assert (first.value, bias.value, second.value, last.value) == (156_800, 200, 2000, 40)
    assert all(each.slots == 2 * each.value for each in sizes.variables)  # Adam's
    # The input in float32, and the first layer's output.
    assert sizes.kept == pytest.approx(32 * 4 * (784 + 50), rel=0.05)
    assert sizes.largest == 32 * 4 * 784
    assert sizes.example == 784 + 4
    assert sizes.train_data == 60_000 * 788
    assert sizes.private > 10**8


def test_activations_grow_with_the_batch_and_variables_do_not():
    small, large = _measured("dense", 8), _measured("dense", 64)
    assert large.kept == 8 * small.kept
    assert [each.value for each in large.variables] == [each.value for each in small.variables]


def test_sgd_has_no_slots_and_momentum_one():
    if not IS_KERAS_2:  # its SGD has a momentum for each variable, used or not
        assert sum(each.slots for each in _measured("dense", optimizer="sgd").variables) == 0
    sizes = _measured("dense", optimizer="momentum")
    assert [each.slots for each in sizes.variables] == [each.value for each in sizes.variables]


def test_the_rows_that_an_embedding_reads_are_counted():
    [embeddings, *others] = _measured("table").variables
    assert (embeddings.shape, embeddings.rows_per_example) == ((256, 8), 784)
    assert all(not each.rows_per_example for each in others)


def test_a_model_without_a_graph_of_layers_is_measured_too():
    sizes = _measured("own")
    assert [each.shape for each in sizes.variables] == [(256, 8), (784 * 8, 10), (10,)]
    assert [each.rows_per_example for each in sizes.variables] == [784, 0, 0]
    assert sizes.kept > 32 * 4 * 784 * 8


def test_moving_averages_are_not_trained():
    config = msgspec.convert({"data": {"name": "shapes"}, "model": {"name": "resnet"}}, Config)
    sizes = measure_model(config, 4)
    still = [each for each in sizes.variables if not each.is_trained]
    assert still
    assert all(not each.slots for each in still)
