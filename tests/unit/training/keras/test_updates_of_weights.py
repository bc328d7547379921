"""Constraints of weights have the results of Keras's own fit, also on two devices and those of a user."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from several_devices import HAS_SEVERAL, own_strategy, run_on_several  # noqa: E402  # after the check that TensorFlow is there
from tfdist.training.fit import fit  # noqa: E402

keras = tf.keras
pytestmark = [
    pytest.mark.skipif(keras.__version__ < "3", reason="Keras 2 applies constraints itself"),
    pytest.mark.filterwarnings("ignore:Gradients do not exist"),  # for a layer that the loss does not use
]
RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(12, 4)).astype("float32"), RANDOM.normal(size=(12, 2)).astype("float32")


class OfNames(keras.constraints.Constraint):
    """A constraint that needs a variable of Keras, and computes in another type."""

    def __call__(self, w):
        return tf.cast(w.value, "float64") * (0.5 if "kernel" in w.path else 2.0)


class Noisy(keras.constraints.Constraint):
    def __call__(self, w):
        return w + tf.random.normal(w.shape)


@pytest.mark.skipif(HAS_SEVERAL, reason="this is what it starts")
def test_all_of_this_holds_on_several_devices():
    run_on_several(__file__)


def model_of(constraint, optimizer):
    keras.utils.set_random_seed(1)
    unused = keras.layers.Dense(2, kernel_constraint=constraint, name="unused")
    number = keras.Input((4,))
    model = keras.Model(number, [keras.layers.Dense(2, kernel_constraint=constraint)(number), unused(number)])
    model.compile(optimizer(), ["mse", None])
    return model


OPTIMIZERS = {
    "plain": lambda: keras.optimizers.SGD(0.5),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5), initial_scale=8.0),
    "accumulating": lambda: keras.optimizers.SGD(0.5, gradient_accumulation_steps=2),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("constraint", [keras.constraints.MaxNorm(0.3), OfNames()], ids=["kerass", "own"])
def test_the_weights_are_those_of_kerass_own_fit(constraint, optimizer):
    kerass = model_of(constraint, OPTIMIZERS[optimizer])
    kerass.fit(X, (Y, Y), batch_size=4, epochs=2, shuffle=False, verbose=0)
    with own_strategy().scope():
        ours = model_of(constraint, OPTIMIZERS[optimizer])
    fit(ours, X, (Y, Y), batch_size=4, epochs=2, shuffle=False, verbose=0)
    for mine, its in zip(ours.get_weights(), kerass.get_weights(), strict=True):
        assert mine == pytest.approx(its, rel=1e-4, abs=1e-5)


@pytest.mark.skipif(not HAS_SEVERAL, reason="one device has one copy")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_copies_stay_equal_where_a_constraint_draws(optimizer):
    strategy = own_strategy()
    with strategy.scope():
        model = model_of(Noisy(), OPTIMIZERS[optimizer])
    fit(model, X, (Y, Y), batch_size=4, epochs=1, shuffle=False, verbose=0)
    for variable in model.trainable_variables:
        one, other = strategy.experimental_local_results(variable.value)
        np.testing.assert_array_equal(one, other)
