"""An epoch counts as the installed Keras counts."""

from types import SimpleNamespace

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from again import again  # noqa: E402  # after the check that TensorFlow is there
from tfdist.training import model_session  # noqa: E402
from tfdist.training.fit import fit  # noqa: E402
from tfdist.training.run_batches import steps_per_execution  # noqa: E402  # after the check that TensorFlow is there


def test_steps_per_execution_may_be_in_a_mirrored_variable():
    with tf.distribute.MirroredStrategy(["/cpu:0"]).scope():
        variable = tf.Variable(3, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
    assert steps_per_execution(SimpleNamespace(steps_per_execution=variable)) == 3  # tf_keras
    assert steps_per_execution(SimpleNamespace(_steps_per_execution=variable)) == 3  # Keras 2 before
    assert steps_per_execution(SimpleNamespace(steps_per_execution=4)) == 4


class Indices(tf.keras.callbacks.Callback):
    """Record the indices of batches."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_begin(self, batch, logs=None):
        self.seen.append(("begin", batch))

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(("end", batch))


@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # as Keras says of an unknown length
def test_indices_after_a_short_execution_are_those_of_keras():
    arrays = np.ones((7, 2), "float32"), np.ones((7, 1), "float32")
    dataset = tf.data.Dataset.from_tensor_slices(arrays).batch(1)
    if tf.keras.__version__ >= "3":  # Keras 2 needs to know the length
        dataset = dataset.filter(lambda x, y: True)
    seen = []
    for train in (tf.keras.Model.fit, fit):
        model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse", steps_per_execution=3)
        indices = Indices()
        train(model, dataset, shuffle=False, verbose=0, callbacks=[indices])
        seen.append(indices.seen)

    assert seen[0] == seen[1]


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize(
    ("steps", "together", "is_known"),
    [
        (5, 1, True),
        (7, 1, True),
        again(10, 1, True),
        again(4, 2, True),
        (5, 3, True),
        # Where data of unknown length end with an epoch, Keras's next epoch has no batch, unlike tfdist's.
        again(5, 1, False),
        (10, 1, False),
        (5, 3, False),
    ],
)
def test_epochs_of_some_steps_call_what_keras_calls(steps, together, is_known):
    if tf.keras.__version__ < "3":
        pytest.skip("Keras 2 ends training where the data end")
    x = np.arange(7, dtype="float32").reshape(7, 1)
    dataset = tf.data.Dataset.from_tensor_slices((x, x)).batch(1)
    if not is_known:
        dataset = dataset.filter(lambda x, y: True)
    seen = []
    for train in (tf.keras.Model.fit, fit):
        model = tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(1, "relu")])
        model.set_weights([np.ones((1, 1)), np.zeros(1)])
        model.compile(tf.keras.optimizers.SGD(0.01), "mse", steps_per_execution=together)
        indices = Indices()
        history = train(
            model,
            dataset,
            epochs=4,
            steps_per_epoch=steps,
            validation_data=dataset,
            validation_steps=9,
            shuffle=False,
            verbose=0,
            callbacks=[indices],
        )
        seen.append((indices.seen, np.round(history.history["loss"], 5).tolist()))

    assert seen[0] == seen[1]


@pytest.mark.parametrize("has_callback", [False, True])
def test_a_step_waits_for_what_callbacks_write_before_it(has_callback, monkeypatch):
    indices = Indices()
    monkeypatch.setattr(model_session, "settle_writes", lambda strategy: indices.seen.append("settled"))
    arrays = np.ones((3, 2), "float32"), np.ones((3, 1), "float32")
    model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    dataset = tf.data.Dataset.from_tensor_slices(arrays).batch(1)
    fit(model, dataset, verbose=0, callbacks=[indices] if has_callback else [])

    calls = [call if call == "settled" else call[0] for call in indices.seen]
    assert calls[:9] == (["begin", "settled", "end"] * 3 if has_callback else ["settled"])
