"""Masked losses of Keras 2 are those of one process, whatever is masked on each replica."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from several_devices import HAS_SEVERAL, own_strategy, run_on_several  # noqa: E402  # after the check that TensorFlow is there
from tfdist.training.evaluate import evaluate  # noqa: E402
from tfdist.training.fit import fit  # noqa: E402

keras = tf.keras
pytestmark = pytest.mark.skipif(
    getattr(keras, "__version__", "2") >= "3", reason="test_losses_of_examples.py and others have Keras 3"
)
RNG = np.random.default_rng(1)
COUNT = 13
WORDS = RNG.integers(0, 4, (COUNT, 5))
WORDS[:, 0] = 1
WORDS[4:6] = 0  # the first replica's part of the second batch
LABELS = RNG.integers(0, 3, COUNT)
LABELS[4:6] = 1
X, TAGS, PAIRS = RNG.normal(size=(COUNT, 4)), RNG.normal(size=(COUNT, 5, 1)), RNG.normal(size=(COUNT, 5, 2))


@pytest.mark.skipif(HAS_SEVERAL, reason="this is what it starts")
@pytest.mark.usefixtures("forking")
def test_all_of_this_holds_on_several_devices():
    run_on_several(__file__)


def ignoring():
    inputs = keras.Input((4,))
    model = keras.Model(inputs, keras.layers.Dense(3)(inputs))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=1)
    return model, loss, (X, LABELS)


def tagging(outputs):
    inputs = keras.Input((5,))
    embedded = keras.layers.Embedding(4, 3, mask_zero=True)(inputs)
    found = [keras.layers.Dense(size, name=f"of_{size}")(embedded) for size in outputs]
    targets = [TAGS, PAIRS][: len(outputs)]
    return keras.Model(inputs, found), "mse", (WORDS, tuple(targets) if len(targets) > 1 else targets[0])


def weighted():
    model, loss, data = tagging([1])
    return model, loss, (*data, RNG.uniform(size=(COUNT, 5)))


KINDS = {
    "ignore": ignoring,
    "mask": lambda: tagging([1]),
    "outputs": lambda: tagging([1, 2]),
    "weights": weighted,
}


@pytest.mark.parametrize("kind", KINDS)
def test_masked_losses_are_those_of_one_process(kind):
    def made():
        keras.utils.set_random_seed(2)
        model, loss, arrays = KINDS[kind]()
        model.compile(keras.optimizers.SGD(0.1), loss)
        return model, tf.data.Dataset.from_tensor_slices(arrays).batch(4)

    alone, data = made()
    with own_strategy().scope():
        ours, _ = made()
    expected = alone.fit(data, epochs=2, shuffle=False, verbose=0).history
    found = fit(ours, data, epochs=2, verbose=0).history
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5)
    for mine, other in zip(ours.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-5)
    np.testing.assert_allclose(evaluate(ours, data, verbose=0), alone.evaluate(data, verbose=0), rtol=1e-4)


class Added(keras.layers.Layer):
    def __init__(self, reduce):
        super().__init__()
        self.reduce = reduce

    def call(self, inputs):
        self.add_loss(self.reduce(tf.square(inputs)))
        return inputs


@pytest.mark.skipif(not HAS_SEVERAL, reason="one device has the whole batch")
@pytest.mark.parametrize(("reduce", "count"), [(tf.reduce_sum, 1), (tf.reduce_mean, 0)], ids=["sum", "mean"])
def test_an_added_sum_is_named_once(reduce, count, caplog):
    def made():
        keras.utils.set_random_seed(2)
        layers = [keras.layers.Dense(2, "relu", activity_regularizer="l2", kernel_regularizer="l2")]
        model = keras.Sequential([keras.Input((4,)), *layers, Added(reduce)])
        model.compile("sgd", "mse", metrics=["mae"])
        return model

    options = {"batch_size": 4, "verbose": 0}
    with own_strategy().scope():
        ours = made()
    found = fit(ours, X, X[:, :2], epochs=2, shuffle=False, **options).history
    assert caplog.text.count("no mean over the examples") == count
    if not count:  # also where a replica has no examples
        alone = made()
        expected = alone.fit(X, X[:, :2], epochs=2, shuffle=False, **options).history
        for name, values in expected.items():
            np.testing.assert_allclose(found[name], values, rtol=1e-5)
        tested = alone.evaluate(X, X[:, :2], **options)
        np.testing.assert_allclose(evaluate(ours, X, X[:, :2], **options), tested, rtol=1e-5)
