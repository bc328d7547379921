"""Predicting returns, calls and accepts what Keras's own predict does."""

import contextlib
import logging

import numpy as np
import pytest

from tfdist.errors import ConfigError, DataError

tf = pytest.importorskip("tensorflow")

from several_devices import HAS_SEVERAL, own_strategy, run_on_several  # noqa: E402  # after the check that TensorFlow is there
from tfdist.training.evaluate import evaluate  # noqa: E402
from tfdist.training.fit import fit  # noqa: E402
from tfdist.training.predict import predict  # noqa: E402
from tfdist.training.prediction_outputs import joined  # noqa: E402
from training_helpers import Trace  # noqa: E402

keras = tf.keras
IS_KERAS_2 = getattr(keras, "__version__", "2") < "3"
COUNT = 9


@pytest.fixture
def strategy():
    return own_strategy()


@pytest.mark.skipif(HAS_SEVERAL, reason="this is what it starts")
@pytest.mark.usefixtures("forking")
def test_all_of_this_holds_on_several_devices():
    run_on_several(__file__)


def pictures(count=COUNT):
    return np.random.default_rng(1).normal(size=(count, 6, 6, 2)).astype("float32")


def batches(arrays, size=4):
    return tf.data.Dataset.from_tensor_slices(arrays).batch(size)


def convolutional():
    keras.utils.set_random_seed(2)
    layers = [keras.layers.Conv2D(4, 3), keras.layers.Flatten(), keras.layers.Dense(2)]
    return keras.Sequential([keras.Input((6, 6, 2)), *layers])


@pytest.mark.parametrize("count", [1, COUNT])
def test_predicts_one_picture_and_many(strategy, count):
    with strategy.scope():
        model = convolutional()  # not compiled
    expected = convolutional().predict(batches(pictures(count)), verbose=0)
    for _ in range(2):
        found = predict(model, batches(pictures(count)), verbose=0)
        assert found == pytest.approx(expected, abs=1e-5)


@pytest.mark.skipif(keras.__version__ < "3", reason="Keras 2 predicts on replicas itself")
@pytest.mark.parametrize("count", [1, COUNT])
def test_a_lookup_that_refuses_what_it_does_not_know_gets_only_what_there_is(strategy, count):
    vocabulary = ["ash", "fir", "oak"]
    names = np.array(vocabulary * 5, dtype=object)[:count, np.newaxis]

    def made():
        name = keras.Input((1,), dtype="string")
        lookup = keras.layers.StringLookup(vocabulary=vocabulary, num_oov_indices=0, output_mode="one_hot")
        return keras.Model(name, lookup(name))

    with strategy.scope():
        model = made()
    found = predict(model, batches(names), verbose=0)
    assert found == pytest.approx(made().predict(batches(names), verbose=0))


@pytest.mark.skipif(keras.__version__ < "3", reason="Keras 2 predicts on replicas itself")
@pytest.mark.parametrize("count", [1, 5])
def test_ragged_inputs_are_predicted(strategy, count):
    class Sums(keras.Model):
        def call(self, rows):
            return tf.reduce_sum(rows, axis=1, keepdims=True)

    rows = tf.RaggedTensor.from_row_lengths(tf.range(15.0), [1, 2, 3, 4, 5])[:count]
    with strategy.scope():
        model = Sums()
    found = predict(model, batches(rows), verbose=0)
    assert found == pytest.approx(np.array([[0], [3], [12], [30], [60]])[:count])


class Dense(keras.Model):
    """A model that is built by its first batch."""

    def __init__(self):
        super().__init__()
        self.layer = keras.layers.Dense(2)

    def call(self, x):
        return self.layer(x)


@pytest.mark.parametrize("compiles", [False, True])
def test_predicts_with_a_model_that_is_not_built(strategy, compiles):
    x = pictures()[:, 0, 0]
    with strategy.scope():
        model = Dense()
        if compiles:
            model.compile("sgd", "mse", metrics=["mae"])
    found = predict(model, batches(x), verbose=0)

    assert found == pytest.approx(model(x).numpy(), abs=1e-5)
    if compiles:
        assert len(fit(model, batches((x, found)), verbose=0).history["loss"]) == 1


def test_trains_layers_that_do_not_know_their_inputs(strategy):
    x = pictures()[:, 0, 0]

    def fitted(layers):
        keras.utils.set_random_seed(4)
        with strategy.scope():
            model = keras.Sequential([*layers, keras.layers.Dense(3, "tanh"), keras.layers.Dense(2)])
            model.compile("adam", "mse", metrics=["mae"])
        losses = fit(model, batches((x, x)), epochs=2, verbose=0).history["loss"]
        return [*losses, *predict(model, batches(x), verbose=0).ravel()]

    assert fitted([]) == pytest.approx(fitted([keras.Input((2,))]), abs=1e-6)


class Several(keras.Model):
    """A model of several inputs and outputs, one of them ragged."""

    def call(self, x):
        first, other = x
        lengths = 1 + tf.cast(other["word"][:, 0] > 0, tf.int64)
        return {"sum": (first + other["word"],), "rows": tf.RaggedTensor.from_tensor(first, lengths=lengths)}


@pytest.mark.skipif(IS_KERAS_2, reason="Keras 2 builds no model of such inputs on several replicas")
def test_takes_nested_inputs_and_returns_ragged_outputs(strategy):
    first, word = pictures()[:, 0, 0], pictures()[:, 1, 1]
    with strategy.scope():
        model = Several()
    data = batches(((first, {"word": word}),))
    found, expected = predict(model, data, verbose=0), Several().predict(data, verbose=0)

    np.testing.assert_array_equal(found["sum"][0], expected["sum"][0])
    assert found["rows"].to_list() == expected["rows"].to_list()


def test_outputs_of_other_sizes_are_ragged_as_in_keras():
    parts = [np.arange(12.0).reshape(2, 3, 2), np.arange(10.0).reshape(1, 5, 2)]
    found = joined(parts, np.array([2, 0, 1]))

    assert found.to_list() == [parts[1][0].tolist(), parts[0][0].tolist(), parts[0][1].tolist()]
    assert found.shape.as_list() == [3, None, 2]


@pytest.mark.parametrize("together", [1, 2])
def test_calls_callbacks_as_keras_does(strategy, together, capsys):
    class Begun(Trace):
        def on_predict_batch_begin(self, batch, logs=None):
            self.calls.append(("begin", batch))

    traces = Begun(), Begun()
    kerass = convolutional()
    with strategy.scope():
        model = convolutional()
    for each in (kerass, model):
        each.compile("sgd", "mse", steps_per_execution=together)
    kerass.predict(batches(pictures()), callbacks=[traces[0]], verbose=0)
    predict(model, batches(pictures()), callbacks=traces[1])

    assert traces[1].calls == traces[0].calls
    assert "3/3" in capsys.readouterr().out  # Keras's progress bar


def test_ends_with_the_steps_or_by_a_callback(strategy):
    with strategy.scope():
        model = convolutional()
    endless = batches(pictures()).repeat()
    assert len(predict(model, endless, steps=5, verbose=0)) == 4 + 4 + 1 + 4 + 4
    assert len(predict(model, batches(pictures()), callbacks=Trace(until=1), verbose=0)) == 8
    model.compile("sgd", "mse", steps_per_execution=2)
    rows = 9 if IS_KERAS_2 else 13  # Keras 3 runs two whole executions
    assert len(predict(model, batches(pictures()), steps=3, verbose=0)) == 9  # without a warning
    assert (
        len(predict(model, endless, steps=3, verbose=0))
        == len(model.predict(endless, steps=3, verbose=0))
        == rows
    )
    with pytest.raises(DataError, match="never ends"):
        predict(model, endless, verbose=0)
    with pytest.raises(ConfigError, match="has no argument 'batch'"):
        predict(model, endless, batch=3)


@pytest.mark.skipif(IS_KERAS_2, reason="Keras 2 runs no step of a replica that has no examples")
def test_replicas_without_examples_train_eagerly(strategy):
    x = pictures(5)[:, 0, 0]
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
        model.compile("sgd", "mse", run_eagerly=True)
    history = fit(model, batches((x, x[:, :1])), verbose=0)  # the last batch has one example

    assert history.history["loss"] == pytest.approx(
        [float(np.mean([*(x[:4].sum(1) - x[:4, 0]) ** 2, *[_after(x)]]))], rel=1e-4
    )


def _after(x):
    """Return the loss of the last example after a step of SGD on the first four."""
    error = x[:4].sum(1) - x[:4, 0]
    kernel = 1 - 0.01 * 2 * (error[:, None] * x[:4]).mean(0)
    bias = -0.01 * 2 * error.mean()
    return float((x[4] @ kernel + bias - x[4, 0]) ** 2)


def test_sparse_inputs_are_predicted(strategy):
    x = np.eye(4, dtype="float32")
    data = tf.data.Dataset.from_tensor_slices(tf.sparse.from_dense(x)).batch(3)
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    assert predict(model, data, verbose=0) == pytest.approx(model(x).numpy(), rel=1e-5)


class OfNoRows(keras.Model):
    """Return an output that has a row for each example, and one that has not."""

    def __init__(self, other):
        super().__init__()
        self.other = other

    def call(self, x):
        return x, self.other(x)


@pytest.mark.parametrize(
    "other",
    [lambda x: tf.reshape(x, (-1, 1)), lambda x: tf.ones((3, 2)), tf.reduce_sum],
    ids=["rows of their own", "a constant", "one number"],
)
def test_outputs_without_a_row_for_each_example(strategy, other):
    x = pictures(8)[:, 0, 0]
    with strategy.scope():
        model = OfNoRows(other)
    if HAS_SEVERAL:
        with pytest.raises(
            ConfigError, match=r"has an output of .* examples\. Several replicas need one for each"
        ):
            predict(model, batches(x), verbose=0)
        return
    found, expected = predict(model, batches(x), verbose=0), OfNoRows(other).predict(batches(x), verbose=0)
    for mine, its in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, its, rtol=1e-6)


@pytest.mark.skipif(HAS_SEVERAL, reason="replicas would share the one row")
def test_an_input_that_is_the_same_for_all_examples(strategy):
    data = batches(pictures()[:, 0, 0]).map(lambda x: (tf.constant([[2.0]]), x))
    with strategy.scope():
        model = keras.Model(
            two := [keras.Input((1,)), keras.Input((2,))], keras.layers.Lambda(lambda xs: xs[0] * xs[1])(two)
        )
    found = predict(model, data.map(lambda *xs: (xs,)), verbose=0)
    np.testing.assert_allclose(found, 2 * pictures()[:, 0, 0], rtol=1e-6)


class Watched(keras.layers.Layer):
    """A layer that counts what it has seen in a metric."""

    def __init__(self):
        super().__init__()
        self.seen = keras.metrics.Sum()

    def call(self, x):
        self.seen.update_state(x)
        return x


@pytest.mark.skipif(IS_KERAS_2, reason="Keras 2 updates variables within its graph")
def test_a_layer_may_update_a_metric(strategy):
    x = pictures()[:, 0, 0]
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), Watched()])
    np.testing.assert_array_equal(predict(model, batches(x), verbose=0), x)


class Noisy(keras.layers.Layer):
    """Count the batches, keep a moving mean of the inputs, and drop some of them in prediction too."""

    def __init__(self):
        super().__init__()
        self.dropout = keras.layers.Dropout(0.5, seed=3)

    def build(self, shape):
        self.mean = self.add_weight(shape=(), initializer="zeros", trainable=False)
        self.count = self.add_weight(shape=(), initializer="zeros", dtype="int64", trainable=False)

    def call(self, inputs):
        self.mean.assign((self.mean + keras.ops.mean(inputs)) / 2)
        self.count.assign(self.count + 1)
        return self.dropout(inputs, training=True)


@pytest.mark.skipif(IS_KERAS_2, reason="Keras 2 updates variables within its graph")
@pytest.mark.parametrize("eagerly", [False, True])
def test_layers_write_in_prediction_what_they_write_in_one_process(strategy, eagerly):
    x = np.random.default_rng(1).normal(size=(COUNT, 3)).astype("float32")
    with strategy.scope():
        ours = keras.Sequential([keras.Input((3,)), Noisy()])
        ours.compile(run_eagerly=eagerly)
    alone = keras.Sequential([keras.Input((3,)), Noisy()])

    found, expected = predict(ours, batches(x), verbose=0), alone.predict(batches(x), verbose=0)

    for mine, its in zip(ours.variables, alone.variables, strict=True):
        np.testing.assert_allclose(mine, its, rtol=1e-6)
    # Each replica draws numbers of its own, the first those of one process; the last batch has one example.
    own = [0, 1, 4, 5, 8] if HAS_SEVERAL else range(COUNT)
    np.testing.assert_array_equal(found[own], expected[own])
    assert np.array_equal(found, expected) is not HAS_SEVERAL


class Batches(keras.metrics.Metric):
    """Count the batches."""

    def __init__(self):
        super().__init__(name="batches")
        self.count = self.add_weight(name="count", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.count.assign_add(1.0)

    def result(self):
        return self.count


@pytest.mark.skipif(IS_KERAS_2, reason="Keras 2 merges the variables of its metrics by a rule of theirs")
def test_a_metric_that_counts_batches_is_named_where_replicas_have_parts(strategy, caplog):
    x = pictures(8)[:, 0, 0]
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
        model.compile("sgd", "mse", metrics=[Batches(), keras.metrics.MeanSquaredError()])
    with caplog.at_level(logging.WARNING, "tfdist"):
        history = fit(model, batches((x, x)), verbose=0).history
    assert history["batches"] == [4.0 if HAS_SEVERAL else 2.0]
    named = [text for text in caplog.messages if "adds 1 to its variable count" in text]
    assert len(named) == HAS_SEVERAL


class Decoder(keras.Model):
    """A model whose step calls it with something else than the data, as a decoder's does."""

    def __init__(self):
        super().__init__()
        self.layer = keras.layers.Dense(2, kernel_initializer="ones")

    def call(self, code):
        return self.layer(code)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(data[:, :1], training=True) - data) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


@pytest.mark.skipif(IS_KERAS_2 and HAS_SEVERAL, reason="Keras 2 leaves the scaling of losses to the step")
def test_a_step_of_its_own_builds_the_model_that_it_calls(strategy):
    x = pictures(8)[:, 0, 0]

    def losses(fitted):
        with strategy.scope():
            model = Decoder()
            model.compile(keras.optimizers.SGD(0.1))
        return fitted(model, batches(x)).history["loss"]

    alone = Decoder()
    alone.compile(keras.optimizers.SGD(0.1))
    expected = alone.fit(batches(x), epochs=2, shuffle=False, verbose=0).history["loss"]
    assert losses(lambda model, data: fit(model, data, epochs=2, verbose=0)) == pytest.approx(
        expected, rel=1e-5
    )


class Logging(keras.Model):
    """A model whose steps are Keras's own, with one more log."""

    def __init__(self):
        super().__init__()
        self.layer = keras.layers.Dense(2, kernel_initializer="ones")

    def call(self, x):
        return self.layer(x)

    def train_step(self, data):
        return {**super().train_step(data), "more": 10.0}

    def test_step(self, data):
        return {**super().test_step(data), "more": 5.0}


@pytest.mark.skipif(IS_KERAS_2 and HAS_SEVERAL, reason="Keras 2 leaves the scaling of losses to the step")
@pytest.mark.parametrize("is_in_scope", [False, True])
def test_a_step_that_calls_kerass_own_builds_the_metrics_too(strategy, is_in_scope):
    x = pictures(8)[:, 0, 0]

    def made():
        model = Logging()
        model.compile(keras.optimizers.SGD(0.1), "mse", metrics=[keras.metrics.MeanSquaredError()])
        return model

    expected = made().fit(x, x[:, :2], batch_size=4, shuffle=False, verbose=0).history
    tested = made().evaluate(x, x[:, :2], batch_size=4, verbose=0)
    with strategy.scope():
        ours, untrained = made(), made()
    options = {"batch_size": 4, "verbose": 0}
    with strategy.scope() if is_in_scope else contextlib.nullcontext():
        found = fit(ours, x, x[:, :2], shuffle=False, **options).history
        assert evaluate(untrained, x, x[:, :2], **options) == pytest.approx(tested, rel=1e-5)
    assert found == {name: pytest.approx(values, rel=1e-5) for name, values in expected.items()}


def test_a_batch_begins_after_what_callbacks_have_written_has_arrived(monkeypatch):
    order = []
    monkeypatch.setattr("tfdist.training.predict.settle_writes", lambda _: order.append("settled"))

    class Writing(keras.callbacks.Callback):
        def on_predict_begin(self, logs=None):
            order.append("begin")

        def on_predict_batch_begin(self, batch, logs=None):
            order.append(batch)

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    predict(model, np.ones((6, 2), "float32"), batch_size=2, callbacks=[Writing()], verbose=0)
    assert order == ["begin", 0, "settled", 1, "settled", 2, "settled"]
