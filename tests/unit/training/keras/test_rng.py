"""One process draws what Keras's own fit draws, in every step, and each of several replicas something else."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from again import again  # noqa: E402  # after the check that TensorFlow is there
from several_devices import HAS_SEVERAL, WITH_AGAIN, own_strategy, run_on_several  # noqa: E402  # after the check
from tfdist.training.evaluate import evaluate  # noqa: E402
from tfdist.training.fit import fit  # noqa: E402
from tfdist.training.predict import predict  # noqa: E402

keras = tf.keras


@pytest.mark.skipif(keras.__version__ < "3", reason="Keras 2 draws by the place of an operation in its graph")
def test_one_process_draws_what_keras_draws():
    class Noise(keras.layers.Layer):
        """A layer that leaves the seed to Keras."""

        def call(self, inputs, training=False):
            return inputs + keras.random.normal(tf.shape(inputs)) if training else inputs

    def model():
        keras.utils.set_random_seed(5)
        made = keras.Sequential(
            [
                keras.Input((6,)),
                keras.layers.Dense(8),
                keras.layers.Dropout(0.5),
                Noise(),
                keras.layers.Dense(1),
            ]
        )
        made.compile("adam", "mse")
        return made

    x = np.random.default_rng(0).normal(size=(32, 6)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(8)
    kerass = model()
    kerass.fit(data, epochs=2, shuffle=False, verbose=0)
    strategy = tf.distribute.OneDeviceStrategy("/device:CPU:0")
    with strategy.scope():
        ours = model()
    fit(ours, data, strategy=strategy, epochs=2, verbose=0)

    for mine, its in zip(ours.get_weights(), kerass.get_weights(), strict=True):
        np.testing.assert_allclose(mine, its, rtol=1e-6, atol=1e-7)


@pytest.mark.skipif(keras.__version__ < "3", reason="Keras 2 draws by the place of an operation in its graph")
@pytest.mark.parametrize("is_seeded", [False, again(True)])
def test_the_next_model_begins_with_the_weights_that_it_has_without_tfdist(is_seeded):
    class Noise(keras.layers.Layer):
        def call(self, inputs):
            return inputs if is_seeded else inputs + keras.random.normal(tf.shape(inputs))

    def begun(train):
        keras.utils.clear_session()
        keras.utils.set_random_seed(5)
        weights = []
        for _ in range(3):
            model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3), Noise()])
            model.compile("sgd", "mse")
            weights.append(model.get_weights()[0])
            train(model, np.ones((4, 2)), np.ones((4, 3)), verbose=0)
        return weights

    for mine, its in zip(begun(fit), begun(keras.Model.fit), strict=True):
        np.testing.assert_array_equal(mine, its)


@pytest.mark.skipif(HAS_SEVERAL, reason="this is what it starts")
@pytest.mark.usefixtures("forking")
@pytest.mark.parametrize("words", WITH_AGAIN)
def test_all_of_this_holds_on_several_devices(words):
    run_on_several(__file__, words)


@pytest.fixture(scope="module")
def strategy():
    return own_strategy()


FOUND = []  # what each replica has drawn: Keras copies the lists of a layer


@pytest.fixture
def found():
    FOUND.clear()
    return FOUND


def sums_by_replica(tensor):
    """Note the number of this replica and the sum of a tensor while the graph runs; return zero."""

    def note(replica, total):
        FOUND.append((int(replica), float(total)))
        return np.float32(0.0)

    context = tf.distribute.get_replica_context()
    if context is None:  # Keras only looks at shapes
        return tf.zeros([])
    replica = tf.convert_to_tensor(context.replica_id_in_sync_group)
    zero = tf.numpy_function(note, [replica, tf.reduce_sum(tensor)], tf.float32)
    return tf.ensure_shape(zero, [])


class Drawn(keras.layers.Layer):
    """A layer whose outputs are numbers of TensorFlow's own."""

    def call(self, inputs):
        drawn = tf.random.normal(tf.shape(inputs)) + 0.0 * inputs
        return drawn + sums_by_replica(drawn)


@pytest.mark.skipif(not HAS_SEVERAL, reason="one device draws alone")
@pytest.mark.parametrize("call", [fit, evaluate, predict])
def test_replicas_draw_other_numbers_of_tensorflow_after_a_seed(strategy, call, found):
    keras.utils.set_random_seed(5)
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), Drawn(), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    data = (np.ones((8, 2)),) if call is predict else (np.ones((8, 2)), np.ones((8, 1)))
    call(model, *data, batch_size=4, verbose=0)
    assert {replica for replica, _ in found} == {0, 1}
    assert len({total for _, total in found}) == len(found)


class BuildsItsDropout(keras.layers.Layer):
    """A layer that makes a layer with a random generator when it is built."""

    def build(self, shape):
        self.dropout = keras.layers.Dropout(0.5)
        self.built = True

    def call(self, inputs, training=False):
        return self.dropout(inputs, training=training)


class Unbuilt(keras.Model):
    """A model with a step of its own, whose layers are built by the first batch."""

    def __init__(self):
        super().__init__()
        self.inner, self.dense = BuildsItsDropout(), keras.layers.Dense(1)

    def call(self, inputs, training=False):
        kept = self.inner(inputs, training=training)
        return self.dense(kept) + sums_by_replica(kept)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"loss": loss}


@pytest.mark.skipif(not HAS_SEVERAL, reason="one device draws alone")
def test_replicas_draw_other_masks_in_layers_that_the_first_batch_builds(strategy, found):
    keras.utils.set_random_seed(5)
    with strategy.scope():
        model = Unbuilt()
        model.compile("sgd", "mse")
    x = np.random.default_rng(1).normal(size=(8, 30)) * np.ones((8, 1))
    fit(model, np.concatenate([x[:2], x[:2], x[4:6], x[4:6]]), np.ones((8, 1)), batch_size=4, verbose=0)
    assert {replica for replica, _ in found} == {0, 1}
    assert len({total for _, total in found}) == len(found)
