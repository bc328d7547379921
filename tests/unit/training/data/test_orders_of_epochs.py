"""A seeded shuffle has the orders of Keras's own `fit`, in all epochs and in the calls after it."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from several_devices import HAS_SEVERAL, own_strategy, run_on_several  # noqa: E402  # after the check that TensorFlow is there
from tfdist.training.evaluate import evaluate  # noqa: E402
from tfdist.training.fit import fit  # noqa: E402
from tfdist.training.predict import predict  # noqa: E402

keras = tf.keras
pytestmark = pytest.mark.skipif(keras.__version__ < "3", reason="Keras 2 begins data at other moments")
X = np.random.default_rng(1).normal(size=(18, 3)).astype("float32")


@pytest.mark.skipif(HAS_SEVERAL, reason="this is what it starts")
@pytest.mark.usefixtures("forking")
def test_all_of_this_holds_on_several_devices():
    run_on_several(__file__)


def shuffled(seed):
    return tf.data.Dataset.from_tensor_slices((X, X[:, :1])).shuffle(18, seed=seed)


def parted():
    both = shuffled(1)
    return both.take(12).batch(4), {"validation_data": both.skip(12).batch(4)}


KINDS = {
    "parted": parted,
    "unknown": lambda: (shuffled(1).filter(lambda x, y: True).batch(4), {}),
    "tested in part": lambda: (
        shuffled(None).batch(4),
        {"validation_data": shuffled(2).batch(4), "validation_steps": 2, "validation_freq": 2},
    ),
    "all steps": lambda: (shuffled(1).batch(4), {"steps_per_epoch": 5}),
}


class _Tested(keras.callbacks.Callback):
    def __init__(self, losses):
        super().__init__()
        self.losses = losses

    def on_test_batch_end(self, batch, logs=None):
        self.losses.append(logs["loss"])


@pytest.mark.filterwarnings("ignore:.*Your input ran out of data")  # Keras's own, of data of unknown size
@pytest.mark.parametrize("kind", KINDS if HAS_SEVERAL else ["parted"])
def test_has_the_orders_of_keras(kind):
    keras.utils.set_random_seed(1)
    alone = of_calls(keras.Model.fit, keras.Model.evaluate, keras.Model.predict, kind)
    keras.utils.set_random_seed(1)
    with own_strategy().scope():
        found = of_calls(fit, evaluate, predict, kind)
    for name, values in alone.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5, err_msg=name)


def of_calls(fit_it, evaluate_it, predict_it, kind):
    """Return what calls in a row log about one data set."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile("sgd", "mse")
    data, options = KINDS[kind]()
    options |= {"verbose": 0, "shuffle": False}
    tests = []
    logs = {"first": fit_it(model, data, epochs=3, callbacks=[_Tested(tests)], **options).history["loss"]}
    logs["tests"] = tests
    logs["evaluate"] = evaluate_it(model, data, verbose=0)
    logs["predict"] = predict_it(model, data, verbose=0)
    logs["second"] = fit_it(model, data, epochs=2, **options).history["loss"]
    return logs
