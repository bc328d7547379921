"""Check the model of configs/cifar10-fast.yaml: its layers, its answers, and that another process can load it."""

import numpy as np
import pytest
import tensorflow as tf
from examples.fast_resnet import Passing, Waves, build

keras = tf.keras
RANDOM = np.random.default_rng(0)

# Keras warns of what Keras does: of NumPy's types, and when it saves a model with TensorFlow.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def test_it_gives_the_same_logits_after_saving_and_loading(tmp_path):
    model = build((32, 32, 3), 10, asks_twice=True)
    assert 1.15e6 < model.count_params() < 1.2e6
    images = RANDOM.integers(0, 256, (4, 32, 32, 3)).astype(np.uint8)
    logits = model(images, training=False)
    assert (logits.shape, logits.dtype) == ((4, 10), tf.float32)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(images, training=False), logits)


def test_it_learns_a_batch_by_heart():
    keras.utils.set_random_seed(1)
    model = build((32, 32, 3), 4, width=16)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])
    images, labels = RANDOM.integers(0, 256, (16, 32, 32, 3)).astype(np.uint8), np.arange(16) % 4
    history = model.fit(images, labels, batch_size=16, epochs=12, verbose=0).history
    assert history["accuracy"][-1] > 0.9


def test_waves_tell_all_of_the_square_around_a_pixel():
    x = RANDOM.normal(0, 3, (2, 6, 7, 3)).astype("float32")
    waves = Waves()(x).numpy()
    assert waves.shape == (2, 6, 7, 27)
    # They turn the square's 27 numbers, and lose none: all have the length that they had.
    np.testing.assert_allclose(
        np.sum(waves[:, 3, 4] ** 2, -1), np.sum(x[:, 2:5, 3:6] ** 2, (1, 2, 3)), rtol=1e-5
    )
    plain = Waves()(np.full((1, 3, 3, 3), 2, "float32")).numpy()[0, 1, 1]
    np.testing.assert_allclose(plain, [2 * 27**0.5, *[0] * 26], atol=1e-5)
    slope = np.zeros((1, 3, 3, 3), "float32") + np.array([-1, 0, 1], "float32")[:, None, None]
    [rising] = np.flatnonzero(np.abs(Waves()(slope).numpy()[0, 1, 1]) > 1e-5)
    assert rising == 9  # the second wave of the rows, the first of the columns and of the channels


def test_an_image_and_its_mirror_image_get_one_answer():
    options = {"image_shape": (8, 8, 3), "classes": 3, "width": 8}
    once, twice = build(**options), build(asks_twice=True, **options)
    for weights in once.weights:  # as if it was trained: no two directions alike
        weights.assign(RANDOM.uniform(0.2, 1, weights.shape))
    twice.set_weights(once.get_weights())
    images = RANDOM.integers(0, 256, (5, 8, 8, 3)).astype(np.uint8)
    answers = [once(each, training=False).numpy() for each in (images, images[:, :, ::-1])]
    assert np.min(np.abs(answers[0] - answers[1])) > 1e-3
    np.testing.assert_allclose(twice(images, training=False), np.mean(answers, axis=0), rtol=1e-4)
    np.testing.assert_array_equal(twice.predict(images, verbose=0).shape, (5, 3))
    np.testing.assert_allclose(twice(images, training=True), once(images, training=True), rtol=1e-4)


@pytest.mark.parametrize(("channels", "wanted"), [(4, 4), (4, 6), (6, 4)])
def test_a_convolution_that_begins_by_passing_its_input_on(channels, wanted):
    keras.utils.set_random_seed(1)
    layer = keras.layers.Conv2D(wanted, 3, padding="same", use_bias=False, kernel_initializer=Passing())
    x = RANDOM.normal(0, 1, (2, 5, 5, channels)).astype("float32")
    y, same = layer(x).numpy(), min(channels, wanted)
    np.testing.assert_array_equal(y[..., :same], x[..., :same])
    for k in range(same, wanted):
        assert np.std(layer.kernel.numpy()[..., k]) == pytest.approx((2 / (9 * channels)) ** 0.5, rel=0.5)
    again = type(layer).from_config(layer.get_config())
    np.testing.assert_array_equal(again(x)[..., :same], x[..., :same])
