"""Outputs whose losses are divided by different numbers train on two devices as in one process."""

import functools

import numpy as np
import pytest

from tfdist.errors import ConfigError

tf = pytest.importorskip("tensorflow")

from again import again  # noqa: E402  # after the check that TensorFlow is there
from several_devices import HAS_SEVERAL, WITH_AGAIN, own_strategy, run_on_several  # noqa: E402  # after the check that TensorFlow is there
from tfdist.training.evaluate import evaluate  # noqa: E402
from tfdist.training.fit import fit  # noqa: E402

keras = tf.keras
pytestmark = [
    pytest.mark.skipif(keras.__version__ < "3", reason="test_keras2_masked_loss_divisors.py has Keras 2"),
    pytest.mark.usefixtures("in_float64"),
]
COUNT = 13  # in batches of 4: the last leaves a replica without any
RNG = np.random.default_rng(1)
WORDS = RNG.integers(0, 4, (COUNT, 5))
WORDS[:, 0] = 1
WORDS[4:6] = 0  # all of the first replica's part of the second batch
TAGS, PAIRS, NUMBERS = (RNG.normal(size=(COUNT, *shape)) for shape in ((5, 1), (5, 2), (1,)))
X = RNG.normal(size=(COUNT, 4))
WEIGHTS = np.where(np.arange(COUNT) % 4 < 2, 0.0, RNG.uniform(size=COUNT))  # none on the first replica


class Penalty(keras.layers.Layer):
    def call(self, inputs):
        self.add_loss(0.3 * tf.reduce_mean(tf.square(inputs)))
        return inputs


@pytest.fixture(scope="module")
def strategy():
    return own_strategy()


@pytest.mark.skipif(HAS_SEVERAL, reason="this is what it starts")
@pytest.mark.usefixtures("forking")
@pytest.mark.parametrize("words", WITH_AGAIN)
def test_all_of_this_holds_on_several_devices(words):
    run_on_several(__file__, words)


def two_masks(kind=keras.Model):
    """Two outputs for each word, both masked, and one for the whole, which is not."""
    words = keras.Input((5,))
    embedded = keras.layers.Embedding(4, 3, mask_zero=True, embeddings_regularizer="l2")(words)
    tags, pairs = (keras.layers.Dense(units, name=f"of_{units}")(embedded) for units in (1, 2))
    number = keras.Input((4,))
    whole = keras.layers.Dense(1, name="whole")(Penalty()(keras.layers.Dense(4, "tanh")(number)))
    model = kind([words, number], [tags, pairs, whole])
    options = {
        "loss": ["mse", "mae", "mse"],
        "loss_weights": [1.0, 0.5, 2.0],
        "weighted_metrics": [["mae"], [], []],
    }
    return model, options, ((WORDS, X), (TAGS, PAIRS, NUMBERS))


def separate_tables():
    """Two embeddings, of which each has a part in the loss of one output."""
    words = keras.Input((5,))
    embedded = [keras.layers.Embedding(4, 3, mask_zero=masks)(words) for masks in (True, False)]
    both = keras.layers.Dense(1, name="of_both")(keras.layers.Concatenate()(embedded))
    one = keras.layers.Dense(2, name="of_one")(embedded[1])
    return keras.Model(words, [both, one]), {"loss": ["mse", "mae"]}, (WORDS, (TAGS, PAIRS))


def flat(kind, *losses):
    number = keras.Input((4,))
    hidden = keras.layers.Dense(3, "tanh", activity_regularizer="l2", kernel_regularizer="l2")(number)
    outputs = {name: keras.layers.Dense(1, name=name)(hidden) for name in ("first", "second")}
    options = {"loss": dict(zip(outputs, losses, strict=True)), "loss_weights": {"first": 0.3, "second": 2.0}}
    return kind(number, outputs), options, (X, dict.fromkeys(outputs, NUMBERS * 2))


def sum_and_mean(kind=keras.Model):
    return flat(kind, keras.losses.MeanSquaredError(reduction="sum"), "mae")


def weights_and_sum(kind=keras.Model):
    losses = [keras.losses.MeanSquaredError(reduction=each) for each in ("mean_with_sample_weight", "sum")]
    model, options, data = flat(kind, *losses)
    return model, options, (*data, {"first": WEIGHTS, "second": WEIGHTS[::-1].copy()})


def more_than_a_sum(kind=keras.Model):
    """Divisors that are computed of sums, of which those of two replicas do not add up."""

    def by_one_more(y_true, y_pred):
        is_known = tf.cast(y_true > 0, y_pred.dtype)
        return tf.reduce_sum(tf.square(y_true - y_pred) * is_known) / (tf.reduce_sum(is_known) + 1.0)

    def by_three_or_more(y_true, y_pred):
        is_known = tf.cast(y_true < 0.5, y_pred.dtype)
        return tf.reduce_sum(tf.abs(y_true - y_pred) * is_known) / tf.maximum(tf.reduce_sum(is_known), 3.0)

    return flat(kind, by_one_more, by_three_or_more)


def more_than_a_sum_and_synchronized():
    number = keras.Input((4,))
    hidden = keras.layers.BatchNormalization(synchronized=True)(keras.layers.Dense(3)(number))
    _, options, (_, targets) = more_than_a_sum()
    loss = options["loss"]["first"]
    return keras.Model(number, keras.layers.Dense(1)(hidden)), {"loss": loss}, (X, targets["first"])


def two_lookups():
    """One table in which a masked output looks up once, and another output twice."""
    first, second = keras.Input((5,)), keras.Input((5,))
    table = keras.layers.Embedding(4, 3, mask_zero=True)
    one, other = table(first), table(second)
    both = keras.layers.Dense(2, name="of_both")(keras.layers.Concatenate()([one, other]))
    outputs = [keras.layers.Dense(1, name="of_one")(one), both]
    return (
        keras.Model([first, second], outputs),
        {"loss": ["mse", "mae"]},
        ((WORDS, WORDS[::-1].copy()), (TAGS, PAIRS)),
    )


def synchronized(kind=keras.Model):
    """Of a part without weight, the examples still count in the moments of the whole batch."""
    number = keras.Input((4,))
    hidden = keras.layers.BatchNormalization(synchronized=True)(keras.layers.Dense(3)(number))
    loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    return kind(number, keras.layers.Dense(1)(hidden)), {"loss": loss}, (X, NUMBERS, WEIGHTS)


def masked_and_synchronized():
    """A part without examples has a divisor too, which the gradients of the others know."""
    words, number = keras.Input((5,)), keras.Input((4,))
    tags = keras.layers.Dense(1, name="tags")(keras.layers.Embedding(4, 3, mask_zero=True)(words))
    hidden = keras.layers.BatchNormalization(synchronized=True)(keras.layers.Dense(3)(number))
    whole = keras.layers.Dense(1, name="whole")(hidden)
    return (
        keras.Model([words, number], [tags, whole]),
        {"loss": ["mse", "mse"]},
        ((WORDS, X), (TAGS, NUMBERS)),
    )


def masked_in_a_synchronized_layer(kind=keras.Model):
    """The moments are those of all words that are there, of which each replica has another number."""
    words = keras.Input((5,))
    tables = keras.layers.Embedding(4, 3, mask_zero=True)(words)
    normal = keras.layers.BatchNormalization(synchronized=True, momentum=0.5)(tables)
    return (
        kind(words, keras.layers.Dense(1)(normal)),
        {"loss": "mse"},
        (WORDS, TAGS),
    )


def frozen():
    model, options, data = two_masks()
    model.trainable = False
    return model, options, data


class OwnStep(keras.Model):
    def train_step(self, data):
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred, weights)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self._loss_tracker.update_state(loss)
        return self.compute_metrics(x, y, y_pred, weights)

    def test_step(self, data):
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        y_pred = self(x, training=False)
        self._loss_tracker.update_state(self.compute_loss(x, y, y_pred, weights))
        return self.compute_metrics(x, y, y_pred, weights)


class OwnLoss(keras.Model):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        penalty = 0.1 * tf.reduce_sum(tf.square(tf.nest.flatten(y_pred)[0]))
        return penalty + super().compute_loss(x, y, y_pred, sample_weight, training)


def in_own_step(make, param=pytest.param):
    return param(functools.partial(make, OwnStep), False, id=f"{make.__name__} in a step of its own")


def in_own_loss(make, param=pytest.param):
    return param(functools.partial(make, OwnLoss), False, id=f"{make.__name__} in a loss of its own")


CASES = [
    (two_masks, False),
    again(two_masks, True),
    (two_lookups, False),
    again(sum_and_mean, False),
    (weights_and_sum, False),
    (more_than_a_sum, False),
    (more_than_a_sum_and_synchronized, False),
    again(synchronized, False),
    (masked_and_synchronized, False),
    (masked_in_a_synchronized_layer, False),
    again(masked_in_a_synchronized_layer, True),
    again(frozen, False),
    in_own_step(two_masks),
    in_own_step(synchronized),
    *(
        in_own_step(each, again)
        for each in (sum_and_mean, weights_and_sum, more_than_a_sum, masked_in_a_synchronized_layer)
    ),
    in_own_loss(sum_and_mean),
    *(in_own_loss(each, again) for each in (two_masks, more_than_a_sum)),
]


@pytest.mark.filterwarnings("ignore:The model does not have any trainable weights")
@pytest.mark.skipif(not HAS_SEVERAL, reason="one device divides each loss itself")
@pytest.mark.parametrize(("make", "run_eagerly"), CASES)
def test_the_numbers_are_those_of_kerass_own_fit(strategy, make, run_eagerly, caplog):
    def made():
        keras.utils.set_random_seed(1)
        model, options, data = make()
        model.compile(keras.optimizers.Adam(0.01, global_clipnorm=0.5), run_eagerly=run_eagerly, **options)
        return model, tf.data.Dataset.from_tensor_slices(data).batch(4)

    kerass, data = made()
    expected = kerass.fit(data, epochs=2, shuffle=False, verbose=0).history
    with strategy.scope():
        ours, _ = made()
    found = fit(ours, data, epochs=2, verbose=0).history
    assert set(found) == set(expected)
    for name, values in expected.items():
        assert found[name] == pytest.approx(values, rel=1e-11), name
    for mine, its in zip(ours.get_weights(), kerass.get_weights(), strict=True):
        assert mine == pytest.approx(its, rel=1e-9, abs=1e-11)
    tested = kerass.evaluate(data, return_dict=True, verbose=0)
    assert evaluate(ours, data, return_dict=True, verbose=0) == pytest.approx(tested, rel=1e-11)
    assert "one number for a batch" not in caplog.text  # so are the losses of outputs


class InABranch(keras.Model):
    def train_step(self, data):
        x, y, weights = data
        loss_of = keras.losses.MeanSquaredError("mean_with_sample_weight")
        y_pred = self(x)
        loss = tf.cond(
            tf.shape(x)[1] > 2, lambda: loss_of(y, y_pred, weights), lambda: tf.zeros([], y_pred.dtype)
        )
        return {"loss": loss}


@pytest.mark.skipif(not HAS_SEVERAL, reason="one device exchanges nothing")
def test_replicas_exchange_no_divisor_in_a_branch_of_the_step(strategy):
    with strategy.scope():
        number = keras.Input((4,))
        model = InABranch(number, keras.layers.Dense(1)(number))
        model.compile("sgd")
    data = tf.data.Dataset.from_tensor_slices((X, NUMBERS, WEIGHTS)).batch(4)
    with pytest.raises(ConfigError, match=r"in a branch or a loop\. .*reduction='sum'"):
        fit(model, data, verbose=0)


@pytest.mark.skipif(not HAS_SEVERAL, reason="one device adds no rows up")
def test_xla_returns_the_rows_of_several_tables(strategy):
    def made(**options):
        keras.utils.set_random_seed(1)
        model, losses, data = separate_tables()
        model.compile(keras.optimizers.SGD(0.1), **losses, **options)
        return model, tf.data.Dataset.from_tensor_slices(data).batch(4)

    kerass, data = made(jit_compile=False)
    kerass.fit(data, shuffle=False, verbose=0)
    with strategy.scope():
        ours, _ = made(jit_compile=True)
    fit(ours, data, verbose=0)
    for mine, its in zip(ours.get_weights(), kerass.get_weights(), strict=True):
        assert mine == pytest.approx(its, rel=1e-9, abs=1e-11)
