"""Check that what is drawn can be learned, and not by a linear model."""

import numpy as np
import pytest
import tensorflow as tf

from tfdist.datasets.open_data import open_data

EXAMPLES = (6000, 1000)
# At most for a linear model, at least for a small CNN after so many steps of 64. Chance is 0.1.
BOUNDS = {"digits": (0.80, 0.93, 200), "shapes": (0.16, 0.40, 600)}


@pytest.fixture(scope="module", params=["digits", "shapes"])
def data(request, tmp_path_factory):
    return open_data(request.param, examples=EXAMPLES, cache_dir=tmp_path_factory.mktemp("cache"))


def test_all_classes_are_drawn_equally_often_and_differently(data):
    images, labels = data.split("train").arrays()
    counts = np.bincount(labels, minlength=10)
    assert counts.sum() == EXAMPLES[0]
    assert np.abs(counts - 600).max() < 5 * np.sqrt(600)
    assert len({image.tobytes() for image in images}) == EXAMPLES[0]
    tests = {image.tobytes() for image in data.split("test").arrays()[0]}
    assert not tests & {image.tobytes() for image in images}


def test_nothing_is_drawn_over_the_edge(data):
    images, _ = data.split("train").arrays()
    if data.name == "digits":  # dark ground, and little ink on the outermost pixels
        edge = np.concatenate([images[:, 0].ravel(), images[:, -1].ravel(), images[:, :, 0].ravel()])
        assert (edge > 128).mean() < 0.02
        assert 0.08 < images.mean() / 255 < 0.20
    else:
        assert images.std() > 40
        assert min(images[..., channel].std() for channel in range(3)) > 40


def test_the_seed_decides_what_is_drawn(data, tmp_path):
    again, other = (open_data(data.name, examples=(50, 5), seed=seed, cache_dir=tmp_path) for seed in (0, 1))
    first, second = (each.split("train").arrays()[0] for each in (again, other))
    assert not np.array_equal(first, second)
    assert len({data.fingerprint, again.fingerprint, other.fingerprint}) == 3


def linear_accuracy(data):
    """Compute the test accuracy of regularised least squares, the best of three strengths."""
    (x, y), (x_test, y_test) = (
        (np.asarray(images, np.float32).reshape(len(images), -1) / 255 - 0.5, labels)
        for images, labels in (data.split("train").arrays(), data.split("test").arrays())
    )
    x, x_test = (np.hstack([each, np.ones((len(each), 1), np.float32)]) for each in (x, x_test))
    found = []
    for strength in (1, 30, 1000):
        weights = np.linalg.solve(x.T @ x + strength * np.eye(x.shape[1]), x.T @ np.eye(10)[y])
        found.append(((x_test @ weights).argmax(1) == y_test).mean())
    return max(found)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Keras's, of NumPy's
def test_a_small_cnn_beats_a_linear_model_clearly(data):
    keras = tf.keras
    keras.utils.set_random_seed(1)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input(data.image_shape),
            layers.Rescaling(1 / 128, -1),
            layers.Conv2D(24, 5, 2, activation="relu"),
            layers.Conv2D(48, 3, 2, activation="relu"),
            layers.Conv2D(96, 3, 1, activation="relu"),
            layers.GlobalMaxPooling2D(),
            layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(2e-3), loss, metrics=["accuracy"])
    most, least, steps = BOUNDS[data.name]
    model.fit(data.train(64), steps_per_epoch=steps, epochs=1, shuffle=False, verbose=0)
    accuracy = model.evaluate(data.test(250), verbose=0)[1]
    linear = linear_accuracy(data)
    print(f"{data.name}: CNN {accuracy:.3f}, linear {linear:.3f}")
    assert linear < most
    assert accuracy > least
