"""A step that names the size of the whole batch fails on several replicas, and the error says what to write instead."""

import re

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from several_devices import HAS_SEVERAL, own_strategy, run_on_several  # noqa: E402  # after the check that TensorFlow is there
from tfdist.training.error_messages.whole_batch_size_errors import explaining_sizes  # noqa: E402
from tfdist.training.fit import fit  # noqa: E402

keras = tf.keras
BATCH = 8
X = np.ones((16, 5), "float32")


@pytest.mark.skipif(HAS_SEVERAL, reason="this is what it starts")
@pytest.mark.usefixtures("forking")
def test_all_of_this_holds_on_several_devices():
    run_on_several(__file__)


class WithNoise(keras.Model):
    """A model that adds noise to a batch, as many tutorials of generative models do."""

    def __init__(self, use):
        super().__init__()
        self.use, self.dense = use, keras.layers.Dense(5)

    def call(self, inputs):
        return self.dense(inputs)

    def train_step(self, data):
        noise = tf.ones((BATCH, 5))
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.use(self, data, noise))
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"loss": loss}


USES = {
    "added": lambda model, x, noise: model(x + noise),
    "beside": lambda model, x, noise: model(tf.concat([x, noise], axis=1)),
    "target": lambda model, x, noise: tf.abs(noise - model(x)),
    "shape": lambda model, x, noise: tf.reshape(model(x), tf.shape(noise)),
}


def told(error):
    return " ".join(getattr(error, "__notes__", ()))


@pytest.mark.skipif(
    keras.__version__ < "3", reason="a custom step of Keras 2 is run as Keras's own fit runs it"
)
@pytest.mark.parametrize("is_known", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize("use", USES)
def test_says_what_to_write(use, is_known, caplog):
    with own_strategy().scope():
        model = WithNoise(USES[use])
        model.compile("sgd")
    data = tf.data.Dataset.from_tensor_slices(X).batch(BATCH, drop_remainder=is_known)
    if not HAS_SEVERAL:
        fit(model, data, shuffle=False, verbose=0)
        return
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)) as raised:
        fit(model, data, shuffle=False, verbose=0)
    assert "tf.shape(x)[0]" in told(raised.value) + caplog.text


class Pairs(WithNoise):
    """A model whose batches are pairs of many examples, not many pairs, as in metric learning."""

    def train_step(self, data):
        self.use = lambda model, pairs, _: model(pairs[0]) - model(pairs[1])
        return super().train_step(data)


@pytest.mark.skipif(
    keras.__version__ < "3", reason="a custom step of Keras 2 is run as Keras's own fit runs it"
)
@pytest.mark.skipif(not HAS_SEVERAL, reason="one device has all rows")
def test_says_that_examples_are_rows(caplog):
    with own_strategy().scope():
        model = Pairs(None)
        model.compile("sgd")
    data = tf.data.Dataset.from_tensor_slices(X.reshape(2, 8, 5)).batch(2)
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        fit(model, data, shuffle=False, verbose=0)
    assert "pairs have the shape (n, 2, ...)" in told(raised.value) + caplog.text


@pytest.mark.parametrize("text", ["Incompatible shapes: [4,5] vs. [9,5]", "no size at all", "are 0 and 0"])
def test_leaves_other_errors_as_they_are(text, caplog):
    with pytest.raises(ValueError, match=re.escape(text)) as raised, explaining_sizes(own_strategy()):
        raise ValueError(text)
    assert str(raised.value) == text
    assert not told(raised.value) + caplog.text
