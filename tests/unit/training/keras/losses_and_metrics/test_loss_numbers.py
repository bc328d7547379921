"""A loss function that returns one number for a batch has the numbers of Keras's own fit on two devices."""

import contextlib
import functools
import logging

import numpy as np
import pytest

from tfdist.errors import ConfigError

tf = pytest.importorskip("tensorflow")

from again import again  # noqa: E402  # after the check that TensorFlow is there
from several_devices import HAS_SEVERAL, WITH_AGAIN, own_strategy, run_on_several  # noqa: E402  # after the check that TensorFlow is there
from tfdist.training.evaluate import evaluate  # noqa: E402
from tfdist.training.fit import fit  # noqa: E402

keras = tf.keras
pytestmark = pytest.mark.skipif(keras.__version__ < "3", reason="Keras 2 reduces losses in another way")
several = pytest.mark.skipif(not HAS_SEVERAL, reason="one device has nothing to combine")
OPTIONS = {"batch_size": 4, "verbose": 0, "shuffle": False}  # of 13 examples
RANDOM = np.random.default_rng(0)
X, Y, WEIGHTS = RANDOM.normal(size=(13, 4)), RANDOM.normal(size=(13, 2)), RANDOM.uniform(size=13)


def summed(y_true, y_pred):
    return 0.5 * tf.reduce_sum(tf.square(y_true - y_pred))


def averaged(y_true, y_pred):
    return tf.reduce_mean(tf.square(y_true - y_pred)) + 0.1 * tf.reduce_mean(tf.abs(y_pred))


def of_all(y_true, y_pred):
    """A sum that is divided by the number of its values, a constant where the graph fixes their shape."""
    losses = tf.square(y_true - y_pred)
    return tf.reduce_sum(losses) / tf.cast(tf.size(losses), losses.dtype)


def root(y_true, y_pred):
    return tf.sqrt(tf.reduce_mean(tf.square(y_true - y_pred)))


def of_known(y_true, y_pred):
    """A number for each example whose first target is positive."""
    is_known = y_true[:, 0] > 0
    return tf.square(tf.boolean_mask(y_pred, is_known) - tf.boolean_mask(y_true, is_known))[:, 0]


def mean_of_known(y_true, y_pred):
    """The mean over the examples whose first target is positive, by two ways to count them."""
    losses = of_known(y_true, y_pred)
    count = tf.size(losses) + tf.shape(losses)[0]
    return tf.reduce_sum(2 * losses) / tf.maximum(tf.cast(count, losses.dtype), 1)


def _of_known_targets(y_true, y_pred):
    """The sum of the losses of targets that are positive, and their number."""
    is_known = tf.cast(y_true > 0, y_pred.dtype)
    return tf.reduce_sum(tf.square(y_true - y_pred) * is_known), tf.reduce_sum(is_known)


def by_one_more(y_true, y_pred):
    """A sum that is divided by the number of known targets and one more."""
    total, count = _of_known_targets(y_true, y_pred)
    return total / (count + 1.0)


def by_four_or_more(y_true, y_pred):
    """A sum that is divided by the number of known targets, or by four if there are fewer."""
    total, count = _of_known_targets(y_true, y_pred)
    return total / tf.maximum(count, 4.0)


def of_columns(y_true, y_pred):
    """A number for each column of targets."""
    return tf.reduce_mean(tf.square(y_true - y_pred), axis=0)


def relative(y_true, y_pred):
    """A number for each example, as a part of the mean of all."""
    return tf.reduce_mean(tf.square(y_true - y_pred), axis=-1) / tf.reduce_mean(tf.square(y_true))


def contrastive(y_true, y_pred):
    """A number for each example, of how its target is told from those of the others."""
    logits = tf.matmul(y_pred, y_true, transpose_b=True)
    return keras.losses.sparse_categorical_crossentropy(
        tf.range(tf.shape(logits)[0]), logits, from_logits=True
    )


def correlated(y_true, y_pred):
    """A number for each example, after the inverse of a matrix of all."""
    spread = tf.matmul(tf.transpose(y_true), y_true) + tf.eye(2, dtype=y_true.dtype)
    return tf.reduce_sum(tf.matmul(y_pred - y_true, tf.linalg.inv(spread)) ** 2, axis=-1)


def hardest(y_true, y_pred):
    """A number for each example, of its distance to the farthest of the others."""
    distances = tf.reduce_sum(tf.square(y_pred[:, None] - tf.expand_dims(y_pred, 0)), axis=-1)
    return tf.reduce_max(distances, axis=1) + tf.reduce_sum(tf.square(y_true), axis=-1)


def with_dice(y_true, y_pred):
    """The usual loss of segmentation: its second term is neither a mean nor a sum over the examples."""
    return keras.losses.MeanSquaredError()(y_true, y_pred) + keras.losses.Dice()(y_true, y_pred)


def with_relative(y_true, y_pred):
    """A loss that calls another one, in which examples depend on each other."""
    return 2.0 * Relative()(y_true, y_pred)


class Spread(keras.layers.Layer):
    """A layer that adds the distances of all pairs of examples to the loss."""

    def call(self, inputs):
        products = tf.tensordot(inputs, inputs, axes=(1, 1))
        self.add_loss(0.1 * tf.reduce_sum(tf.square(products)))
        return inputs


class Rows(keras.layers.Layer):
    """A layer that adds a number for each example to the loss."""

    def call(self, inputs):
        self.add_loss(0.01 * tf.reduce_sum(tf.square(inputs), axis=1))
        return inputs


class OwnStep(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {metric.name: metric.result() for metric in self.metrics}


class Relative(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return relative(y_true, y_pred)


class OwnLoss(keras.Model):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return super().compute_loss(x, y, y_pred, sample_weight, training) + 0.1


class RootOfMean(keras.losses.MeanSquaredError):
    def __call__(self, y_true, y_pred, sample_weight=None):
        return tf.sqrt(super().__call__(y_true, y_pred, sample_weight))


class HalfOfMean(keras.losses.MeanSquaredError):
    def __call__(self, y_true, y_pred, sample_weight=None):
        return super().__call__(y_true, y_pred, sample_weight) / 2 + 0.1


class OwnDividedLoss(keras.Model):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        y = tf.cast(y, y_pred.dtype)
        return by_one_more(y, y_pred) + 0.5 * by_four_or_more(y, y_pred) + 0.1 * tf.reduce_mean(y_pred)


class Halved(keras.optimizers.SGD):
    def apply_gradients(self, grads_and_vars):
        return super().apply_gradients([(gradient / 2, variable) for gradient, variable in grads_and_vars])


@pytest.fixture
def strategy():
    return own_strategy()


@pytest.mark.skipif(HAS_SEVERAL, reason="this is what it starts")
@pytest.mark.usefixtures("forking")
@pytest.mark.parametrize("words", WITH_AGAIN)
def test_all_of_this_holds_on_several_devices(words):
    run_on_several(__file__, words)


def model_of(loss, base=keras.Model):
    keras.utils.set_random_seed(1)
    number = keras.Input((4,), dtype="float64")
    model = base(number, keras.layers.Dense(2, dtype="float64")(number))
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss)
    return model


IN_FIT = [averaged, mean_of_known, by_one_more, of_columns]
IN_OWN_STEP = [summed, of_known, by_four_or_more, HalfOfMean()]


@pytest.mark.parametrize(
    ("loss", "base"),
    [
        *((loss, keras.Model) for loss in IN_FIT),
        *((loss, OwnStep) for loss in IN_OWN_STEP),
        *(again(loss, OwnStep) for loss in IN_FIT),
        *(again(loss, keras.Model) for loss in IN_OWN_STEP),
    ],
)
def test_the_numbers_are_those_of_kerass_own_fit(strategy, loss, base, caplog):
    kerass = model_of(loss, base)
    expected = kerass.fit(X, Y, epochs=2, **OPTIONS).history["loss"]
    with strategy.scope():
        ours = model_of(loss, base)
    with caplog.at_level(logging.WARNING, "tfdist"):
        found = fit(ours, X, Y, epochs=2, **OPTIONS).history["loss"]
    assert found == pytest.approx(expected, rel=1e-6)  # Keras adds up the log in float32
    for mine, its in zip(ours.get_weights(), kerass.get_weights(), strict=True):
        # Keras divides the losses of examples in float32.
        close = 1e-12 if loss in (summed, averaged) else 1e-7
        assert mine == pytest.approx(its, rel=close, abs=close)
    tested = kerass.evaluate(X, Y, batch_size=4, verbose=0)
    assert evaluate(ours, X, Y, batch_size=4, verbose=0) == pytest.approx(tested, rel=1e-6)
    assert not [each for each in caplog.records if each.name == "tfdist"]  # TensorFlow warns of many traces


def test_an_own_loss_is_divided_by_what_is_computed_of_the_sum_of_the_whole_batch(strategy):
    kerass = model_of("mse", OwnDividedLoss)
    expected = kerass.fit(X, Y, epochs=2, **OPTIONS).history["loss"]
    with strategy.scope():
        ours = model_of("mse", OwnDividedLoss)
    assert fit(ours, X, Y, epochs=2, **OPTIONS).history["loss"] == pytest.approx(expected, rel=1e-6)
    for mine, its in zip(ours.get_weights(), kerass.get_weights(), strict=True):
        assert mine == pytest.approx(its, rel=1e-7, abs=1e-7)


@pytest.mark.parametrize("base", [keras.Model, OwnStep], ids=["fit", "own step"])
def test_a_mean_is_one_where_endless_data_fix_the_size_of_batches(strategy, base, in_float64):
    def made():
        keras.utils.set_random_seed(1)
        layers = [keras.layers.Dense(3, activity_regularizer="l2"), keras.layers.Dense(2)]
        model = base(inputs := keras.Input((4,)), keras.Sequential(layers)(inputs))
        model.compile(keras.optimizers.SGD(0.1), of_all, metrics=None if base is OwnStep else [of_all])
        return model

    data = tf.data.Dataset.from_tensor_slices((X, Y)).repeat().batch(4, drop_remainder=True)
    options = {"steps_per_epoch": 3, "epochs": 2, "verbose": 0, "shuffle": False}
    kerass = made()
    expected = kerass.fit(data, **options).history
    with strategy.scope():
        ours = made()
    found = fit(ours, data, **options).history
    assert {name: pytest.approx(values, rel=1e-6) for name, values in expected.items()} == found
    for mine, its in zip(ours.get_weights(), kerass.get_weights(), strict=True):
        assert mine == pytest.approx(its, rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("base", [keras.Model, OwnStep], ids=["fit", "own step"])
def test_a_method_that_an_optimizer_overrides_is_called_once(strategy, base):
    kerass = model_of("mse", base)
    with strategy.scope():
        ours = model_of("mse", base)
    for model, train in ((kerass, kerass.fit), (ours, functools.partial(fit, ours))):
        with contextlib.nullcontext() if model is kerass else strategy.scope():
            model.compile(Halved(0.1), "mse")
        train(X, Y, epochs=1, **OPTIONS)
    for mine, its in zip(ours.get_weights(), kerass.get_weights(), strict=True):
        assert mine == pytest.approx(its, rel=1e-6, abs=1e-7)


def test_losses_behind_rows_that_are_put_back_are_those_of_examples(strategy, caplog):
    class Routed(keras.layers.Layer):
        def call(self, x):
            chosen = tf.where(x[:, 0] > 0)
            return tf.tensor_scatter_nd_update(x, chosen, 2.0 * tf.gather_nd(x, chosen))

    def made():
        keras.utils.set_random_seed(1)
        number = keras.Input((4,), dtype="float64")
        routed = Routed(dtype="float64")(number)
        outputs = [keras.layers.Dense(2, dtype="float64", name=f"out{each}")(routed) for each in range(2)]
        model = OwnStep(number, outputs)
        model.compile(keras.optimizers.SGD(0.01), ["mse", "mae"])
        return model

    kerass = made()
    kerass.fit(X, [Y, Y], epochs=1, **OPTIONS)
    with strategy.scope():
        ours = made()
    fit(ours, X, [Y, Y], epochs=1, **OPTIONS)
    for mine, its in zip(ours.get_weights(), kerass.get_weights(), strict=True):
        assert mine == pytest.approx(its, rel=1e-6, abs=1e-7)


@several
@pytest.mark.parametrize(
    ("loss", "base"),
    [
        (root, keras.Model),
        (root, OwnStep),
        (RootOfMean(), keras.Model),
        (with_dice, keras.Model),
        (keras.losses.Dice() if keras.__version__ > "3" else None, OwnLoss),
    ],
    ids=["fit", "own step", "after the mean", "beside a mean", "own loss"],
)
def test_a_number_that_need_not_be_a_mean_is_named_once(strategy, loss, base, caplog):
    with strategy.scope():
        model = model_of(loss, base)
    with caplog.at_level(logging.WARNING, "tfdist"):
        fit(model, X, Y, epochs=2, **OPTIONS)
    assert [message.split(";")[0] for message in caplog.messages] == ["loss: returns one number for a batch"]


def test_a_loss_may_be_a_number_of_pythons(strategy):
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Activation("relu")])
        model.compile("sgd", lambda y_true, y_pred: 0)
    assert fit(model, X, Y, epochs=1, **OPTIONS).history["loss"] == [0]


@several
@pytest.mark.parametrize(
    ("loss", "base"),
    [
        *((loss, keras.Model) for loss in (relative, contrastive, hardest)),
        *((loss, OwnStep) for loss in (with_relative, correlated)),
        *(again(loss, OwnStep) for loss in (relative, contrastive, hardest)),
        *(again(loss, keras.Model) for loss in (with_relative, correlated)),
    ],
)
def test_a_loss_of_an_example_that_depends_on_the_others_is_named_once(strategy, loss, base, caplog):
    with strategy.scope():
        model = model_of(loss, base)
    with caplog.at_level(logging.WARNING, "tfdist"):
        fit(model, X, Y, epochs=2, **OPTIONS)
    [message] = [message for message in caplog.messages if "traced" not in message]
    assert message.startswith("loss: that of an example depends on the other examples (operation ")


@several
def test_an_added_loss_that_compares_examples_is_named_once(strategy, caplog):
    with strategy.scope():
        layers = [keras.layers.Dense(2, kernel_regularizer="l2", activity_regularizer="l1"), Spread()]
        model = keras.Sequential([keras.Input((4,)), *layers])
        model.compile("sgd", "mse")
        other = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, activity_regularizer="l2")])
        other.compile("sgd", "mse")
    with caplog.at_level(logging.WARNING, "tfdist"):
        fit(model, X, Y, epochs=2, **OPTIONS)
        fit(other, X, Y, epochs=1, **OPTIONS)
    found = [message.split(" is ")[0] for message in caplog.messages if "traced" not in message]
    assert found == ["loss: what add_loss or an activity regularizer adds"]


@several
def test_weights_of_examples_are_a_mistake_of_one_line(strategy):
    with strategy.scope():
        model = model_of(averaged)
    message = r"^loss: returns one number for a batch, of which .* Return a number for each example"
    with pytest.raises(ConfigError, match=message):
        fit(model, X, Y, sample_weight=WEIGHTS, **OPTIONS)
    with pytest.raises(ConfigError, match=message):
        evaluate(model, X, Y, sample_weight=WEIGHTS, batch_size=4, verbose=0)


@several
def test_a_root_of_a_mean_beside_a_sum_is_a_mistake_of_one_line(strategy):
    number = keras.Input((4,))
    with strategy.scope():
        model = keras.Model(number, [keras.layers.Dense(2)(number), keras.layers.Dense(2)(number)])
        model.compile("sgd", [RootOfMean(), keras.losses.MeanSquaredError(reduction="sum")])
    with pytest.raises(
        ConfigError, match=r"^loss: changes what Keras has reduced over the batch, .* in `call`"
    ):
        fit(model, X, [Y, Y], epochs=1, **OPTIONS)


@pytest.mark.parametrize(
    ("base", "is_eager"),
    [(keras.Model, False), again(keras.Model, True), (OwnStep, False)],
    ids=["fit", "eagerly", "own step"],
)
def test_what_layers_add_before_a_synchronized_one_counts_on_each_replica(
    strategy, base, is_eager, in_float64
):
    def made():
        keras.utils.set_random_seed(1)
        number = keras.Input((4,))
        penalized = keras.layers.Dense(3, activity_regularizer="l2")(number)
        normal = keras.layers.BatchNormalization(synchronized=True)(Rows()(penalized))
        model = base(number, keras.layers.Dense(2)(normal))
        model.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=is_eager)
        return model

    kerass = made()
    expected = kerass.fit(X, Y, epochs=2, **OPTIONS).history["loss"]
    with strategy.scope():
        ours = made()
    found = fit(ours, X, Y, epochs=2, **OPTIONS).history["loss"]
    assert found == pytest.approx(expected, rel=1e-6)
    for mine, its in zip(ours.get_weights(), kerass.get_weights(), strict=True):
        assert mine == pytest.approx(its, rel=1e-6, abs=1e-7)
    tested = kerass.evaluate(X, Y, batch_size=4, verbose=0)
    assert evaluate(ours, X, Y, batch_size=4, verbose=0) == pytest.approx(tested, rel=1e-6)
    assert not any("_IdsOfThread" in repr(vars(layer)) for layer in ours.layers)


@pytest.mark.parametrize(("reduction", "is_eager"), [("sum_over_batch_size", False), ("sum", True)])
def test_the_losses_of_outputs_are_logged_by_a_step_on_batches_of_one_size(
    strategy, reduction, is_eager, in_float64
):
    kinds = keras.losses.MeanSquaredError, keras.losses.MeanAbsoluteError

    def made():
        keras.utils.set_random_seed(1)
        number = keras.Input((4,))
        model = OwnStep(number, [keras.layers.Dense(2, name=f"out{each}")(number) for each in range(2)])
        model.compile(
            keras.optimizers.SGD(0.01), [kind(reduction=reduction) for kind in kinds], run_eagerly=is_eager
        )
        return model

    data = tf.data.Dataset.from_tensor_slices((X, (Y, Y))).batch(4, drop_remainder=True)
    expected = made().fit(data, shuffle=False, verbose=0).history
    with strategy.scope():
        ours = made()
    found = fit(ours, data, verbose=0).history
    assert {name: pytest.approx(values, rel=1e-6) for name, values in expected.items()} == found
