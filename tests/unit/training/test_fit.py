"""The loop in one process: what it refuses, and that it is Keras's own fit to the last digit."""

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest

from again import again
from tfdist.errors import ConfigError, DataError

tf = pytest.importorskip("tensorflow")

from tfdist.training.checkpoints.checkpoint_callback import CheckpointAndResume  # noqa: E402
from tfdist.training.evaluate import evaluate  # noqa: E402
from tfdist.training.fit import fit  # noqa: E402
from tfdist.training.keras.model_checks import check_states  # noqa: E402
from tfdist.training.predict import predict  # noqa: E402  # after the check that TensorFlow is there
from training_helpers import batches, points  # noqa: E402

keras = tf.keras


@pytest.fixture
def strategy():
    return tf.distribute.OneDeviceStrategy("/device:CPU:0")


def linear(**options):
    keras.utils.set_random_seed(2)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.1), "mse", metrics=["mae"], **options)
    return model


@pytest.mark.parametrize("together", [1, 3])
def test_is_keras_fit(strategy, together):
    alone = linear().fit(batches(), epochs=3, validation_data=batches(), shuffle=False, verbose=0)
    with strategy.scope():
        model = linear(steps_per_execution=together)
    ours = fit(model, batches(), strategy=strategy, epochs=3, validation_data=batches(), verbose=0)

    assert ours.epoch == alone.epoch
    assert set(ours.history) == set(alone.history)
    for name, values in alone.history.items():
        assert ours.history[name] == pytest.approx(values, rel=1e-5)


def test_a_layer_with_a_vocabulary_is_trained_saved_and_resumed(strategy, tmp_path):
    words, y = np.array(["b a c", "a", "c c", "b"] * 3)[:, None], points()[1][:12]
    data = tf.data.Dataset.from_tensor_slices((words, y)).batch(4)

    def texts():
        keras.utils.set_random_seed(2)
        layers = keras.layers
        vectors = layers.TextVectorization(output_sequence_length=3)
        vectors.adapt(words)
        model = keras.Sequential([keras.Input((1,), dtype="string"), vectors, layers.Embedding(9, 2)])
        model.add(layers.Flatten())
        model.add(layers.Dense(1))
        model.compile("adam", "mse")
        return model

    alone = texts()
    expected = alone.fit(data, epochs=3, shuffle=False, verbose=0).history["loss"]
    found = []
    for epochs in (2, 3):
        with strategy.scope():
            model = texts()
        kept = keras.callbacks.BackupAndRestore(tmp_path, delete_checkpoint=False)
        if keras.__version__ >= "3":
            kept = CheckpointAndResume(tmp_path)
        found.append(fit(model, data, epochs=epochs, callbacks=[kept], verbose=0).history["loss"])

    assert found[0] == pytest.approx(expected[:2], rel=1e-5)
    assert found[1][-1] == pytest.approx(expected[-1], rel=1e-5)
    assert predict(model, data, verbose=0) == pytest.approx(alone.predict(data, verbose=0), rel=1e-5)


@pytest.mark.skipif(keras.__version__ < "3", reason="Keras 2 looks at the class alone, as it does itself")
def test_a_step_that_is_set_on_the_model_is_its_step(strategy):
    def made():
        model = linear()

        def step(data):
            model.layers[0].bias.assign(2 * model.layers[0].bias)
            return keras.Sequential.train_step(model, data)

        model.train_step = step
        return model

    alone = made()
    expected = alone.fit(batches(), shuffle=False, verbose=0).history["loss"]
    with strategy.scope():
        model = made()
    assert fit(model, batches(), verbose=0).history["loss"] == pytest.approx(expected)
    assert model.get_weights()[1] == pytest.approx(alone.get_weights()[1])


@pytest.mark.skipif(keras.__version__ < "3", reason="Keras 2 has none of these")
@pytest.mark.filterwarnings("ignore:The model does not have any trainable weights")
@pytest.mark.parametrize(
    "made_optimizer",
    [
        lambda: keras.optimizers.Adam(0.1, gradient_accumulation_steps=2),
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)),
        lambda: None,
    ],
    ids=["accumulating", "scaled", "none"],
)
def test_a_model_without_trainable_weights_adapts_its_statistics(strategy, made_optimizer):
    def made():
        keras.utils.set_random_seed(2)
        model = keras.Sequential(
            [keras.Input((3,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
        )
        normalization, dense = model.layers
        normalization.gamma.trainable = normalization.beta.trainable = dense.trainable = False
        model.compile(made_optimizer(), "mse")
        return model

    alone = made()
    expected = alone.fit(batches(), epochs=2, shuffle=False, verbose=0).history["loss"]
    with strategy.scope():
        model = made()
    assert fit(model, batches(), epochs=2, verbose=0).history["loss"] == pytest.approx(expected)
    for mine, its in zip(model.get_weights(), alone.get_weights(), strict=True):
        assert mine == pytest.approx(its)


def test_a_callback_may_freeze_layers_before_the_first_batch(strategy):
    class Freezes(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.model.layers[0].trainable = False

    def made():
        keras.utils.set_random_seed(2)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
        return model

    alone = made()
    alone.fit(batches(), epochs=2, shuffle=False, callbacks=[Freezes()], verbose=0)
    with strategy.scope():
        model = made()
    fit(model, batches(), strategy=strategy, epochs=2, callbacks=[Freezes()], verbose=0)
    for mine, its in zip(model.get_weights(), alone.get_weights(), strict=True):
        assert mine == pytest.approx(its, rel=1e-5)


def test_a_callback_may_read_the_metrics_of_an_epoch(strategy):
    class Reads(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.found = []

        def on_train_batch_end(self, batch, logs=None):
            losses = [metric.result() for metric in self.model.metrics if metric.name == "loss"]
            self.found.append(float(losses[0]))

        on_test_batch_end = on_train_batch_end

    kerass, ours = Reads(), Reads()
    options = {"validation_data": batches(), "epochs": 2, "verbose": 0}
    linear().fit(batches(), shuffle=False, callbacks=[kerass], **options)
    with strategy.scope():
        model = linear()
    fit(model, batches(), strategy=strategy, callbacks=[ours], **options)
    assert ours.found == pytest.approx(kerass.found, rel=1e-5)
    evaluate(model, batches(), strategy=strategy, callbacks=[ours], verbose=0)
    assert ours.found[16:] == ours.found[12:16]


@pytest.mark.skipif(keras.__version__ < "3", reason="Keras 2 builds its metrics in a step")
def test_run_eagerly_runs_what_no_graph_can(strategy):
    class Numbers(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x):
            return self.dense(x) * float(np.mean(x.numpy()) < 9)

    def within_half(y_true, y_pred):
        return float(np.mean(np.abs(y_true.numpy() - y_pred.numpy()) < 0.5))

    def made():
        keras.utils.set_random_seed(2)
        model = Numbers()
        model.compile("adam", "mse", metrics=[within_half], run_eagerly=True)
        return model

    expected = made().fit(batches(), epochs=2, validation_data=batches(), shuffle=False, verbose=0)
    with strategy.scope():
        model = made()
    found = fit(model, batches(), strategy=strategy, epochs=2, validation_data=batches(), verbose=0)
    for name, values in expected.history.items():
        assert found.history[name] == pytest.approx(values, rel=1e-5)


@pytest.mark.skipif(keras.__version__ < "3", reason="Keras 2 builds its metrics in a step")
def test_a_built_model_may_have_a_step_for_other_data_than_its_call(strategy):
    class Pairs(keras.Model):
        def train_step(self, data):
            pairs, _ = data  # (examples, 2, features)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(pairs[:, 0]) - self(pairs[:, 1])))
            weights = self.trainable_weights
            self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            self._loss_tracker.update_state(loss)
            return {"loss": self._loss_tracker.result()}

    def trained(fitted):
        keras.utils.set_random_seed(1)
        number = keras.Input((3,))
        model = Pairs(number, keras.layers.Dense(2)(number))
        model.compile("sgd")
        x = np.random.default_rng(1).normal(size=(8, 2, 3))
        return fitted(model, x, np.zeros(8), batch_size=4, epochs=2, verbose=0, shuffle=False).history["loss"]

    expected = trained(keras.Model.fit)
    with strategy.scope():
        assert trained(fit) == pytest.approx(expected, rel=1e-5)


@pytest.mark.skipif(keras.__version__ < "3", reason="Keras 2 builds its metrics in a step")
@pytest.mark.parametrize("own", ["train_step", "test_step"])
def test_one_step_of_its_own_may_have_other_data_than_that_of_keras(strategy, own):
    class Model(keras.Model):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            self.extra = keras.metrics.Mean(name="extra")

    def train_step(self, data):
        (x, y), others = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True)) + tf.reduce_mean(self(others) ** 2)
        weights = self.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        self.extra.update_state(loss)
        return {"loss": loss}

    def test_step(self, data):
        (x, y), others = data
        self.extra.update_state(tf.abs(self(x) - y), sample_weight=others[:, :1])
        return {"extra": self.extra.result()}

    setattr(Model, own, {"train_step": train_step, "test_step": test_step}[own])
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(8, 3)).astype("float32"), rng.normal(size=(8, 1)).astype("float32")
    plain = tf.data.Dataset.from_tensor_slices((x, y)).batch(4)
    other = tf.data.Dataset.from_tensor_slices(((x, y), np.abs(x))).batch(4)
    data = (other, plain) if own == "train_step" else (plain, other)

    def trained(fitted):
        model = of_its_own(Model)
        history = fitted(model, data[0], validation_data=data[1], epochs=2, verbose=0, shuffle=False).history
        return history, model.get_weights()

    expected, weights = trained(keras.Model.fit)
    with strategy.scope():
        found, own_weights = trained(fit)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name] == pytest.approx(values, rel=1e-5), name
    for mine, its in zip(own_weights, weights, strict=True):
        assert mine == pytest.approx(its, rel=1e-5)


@pytest.mark.skipif(keras.__version__ < "3", reason="Keras 2 has no optional inputs")
@pytest.mark.parametrize(
    ("has_other", "kind"),
    [(True, "arrays"), (False, "generator"), again(True, "generator"), again(False, "arrays")],
)
@pytest.mark.filterwarnings("ignore:Your input ran out of data", "ignore:`shuffle=True` was passed")
def test_an_optional_input_may_be_none_as_in_keras(strategy, kind, has_other):
    class Added(keras.layers.Layer):
        def call(self, x, other=None):
            return x if other is None else x + other

    def made():
        keras.utils.set_random_seed(2)
        x, other = keras.Input((3,), name="x"), keras.Input((3,), name="other", optional=True)
        model = keras.Model({"x": x, "other": other}, keras.layers.Dense(1)(Added()(x, other)))
        model.compile("sgd", "mse")
        return model

    x, y = points()
    inputs = {"x": x, "other": 2 * x if has_other else None}

    def data(*targets):
        def generated():
            for _ in range(3):
                yield (inputs, *targets)

        return (generated(),) if kind == "generator" else (inputs, *targets)

    alone, without, options = made(), made(), {"shuffle": False, "verbose": 0}
    with strategy.scope():
        within = made()
    expected = alone.fit(*data(y), **options).history["loss"]
    loss = alone.evaluate(*data(y), verbose=0)
    outputs = alone.predict(*data(), verbose=0)
    for ours in (without, within):
        assert fit(ours, *data(y), **options).history["loss"] == pytest.approx(expected)
        assert evaluate(ours, *data(y), verbose=0) == pytest.approx(loss)
        np.testing.assert_allclose(predict(ours, *data(), verbose=0), outputs, rtol=1e-5)


_WITH_NEW_CONTEXT = """
import tensorflow as tf
from tensorflow.python.eager import context

from training_helpers import batches
from tfdist.training.fit import fit

for _ in range(2):
    model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    fit(model, batches(), strategy=tf.distribute.get_strategy(), verbose=0)
    context._reset_context()
"""


def test_trains_after_a_script_has_replaced_tensorflows_context(run_program):
    ended = run_program(_WITH_NEW_CONTEXT)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.skipif(keras.__version__ < "3", reason="the layer is in Keras 3")
def test_a_layer_that_writes_its_weights_learns_as_in_keras(strategy):
    def made():
        keras.utils.set_random_seed(2)
        wrapped = keras.layers.SpectralNormalization(keras.layers.Dense(4, kernel_regularizer="l2"))
        model = keras.Sequential([keras.Input((3,)), wrapped, keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.1), "mse")
        return model

    alone = made()
    history = alone.fit(batches(), epochs=2, shuffle=False, verbose=0)
    with strategy.scope():
        model = made()
    ours = fit(model, batches(), strategy=strategy, epochs=2, verbose=0)

    assert ours.history["loss"] == pytest.approx(history.history["loss"], rel=1e-5)
    for mine, its in zip(model.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(mine, its, rtol=1e-4, atol=1e-5)


if keras.__version__ >= "3":

    class Counts(keras.layers.Layer):
        """Count calls, also those that do not train, in a variable of the layer."""

        def build(self, shape):
            self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False)

        def call(self, inputs):
            self.calls.assign_add(1.0)
            return inputs * self.calls

    class Samples(keras.layers.Layer):
        """Add noise, also where nothing trains."""

        def __init__(self):
            super().__init__()
            self.seed_generator = keras.random.SeedGenerator(3)

        def call(self, inputs):
            return inputs + keras.random.normal(keras.ops.shape(inputs), seed=self.seed_generator)

    class Hides(keras.layers.Layer):
        """Write a variable that is no attribute of the layer, and draw from such a generator."""

        def __init__(self):
            super().__init__()
            calls, generator = keras.Variable(0.0, trainable=False), keras.random.SeedGenerator(3)

            def changed(inputs):
                calls.assign_add(1.0)
                return inputs * calls + keras.random.normal(keras.ops.shape(inputs), seed=generator)

            self.changed = changed

        def call(self, inputs):
            return self.changed(inputs)

    def recurrent():
        return keras.Sequential(
            [keras.layers.Reshape((3, 1)), keras.layers.LSTM(3, stateful=True)], name="recurrent"
        )

    WRITING = [Counts, Samples, Hides, recurrent]


@pytest.mark.skipif(keras.__version__ < "3", reason="Keras 2 updates variables within its graph")
@pytest.mark.parametrize("made", WRITING if keras.__version__ >= "3" else [], ids=lambda made: made.__name__)
def test_layers_write_variables_in_training_and_evaluation_as_in_keras(strategy, made):
    def trained(fit, evaluate, **where):
        keras.utils.set_random_seed(2)
        model = keras.Sequential([keras.Input((3,), batch_size=4), made(), keras.layers.Dense(1)])
        model.compile("sgd", "mse", steps_per_execution=2, jit_compile=False)
        data = batches(4)
        options = {"epochs": 2, "validation_data": data, "shuffle": False, "verbose": 0, **where}
        history = fit(model, data, **options).history
        return [*history["loss"], *history["val_loss"], evaluate(model, data, verbose=0, **where)]

    expected = trained(keras.Model.fit, keras.Model.evaluate)
    with strategy.scope():
        found = trained(fit, evaluate, strategy=strategy)

    assert found == pytest.approx(expected, rel=1e-5)


class Seen(keras.callbacks.Callback):
    """Note the index that callbacks get at the end of each execution."""

    def __init__(self):
        super().__init__()
        self.epochs = []

    def on_epoch_begin(self, epoch, logs=None):
        self.epochs.append([])

    def on_train_batch_end(self, batch, logs=None):
        self.epochs[-1].append(batch)


@pytest.mark.skipif(
    getattr(keras, "__version__", "2") < "3", reason="Keras 2 ends the training where the data end"
)
@pytest.mark.parametrize(
    ("steps", "together"), [(3, 1), (4, 3), (6, 1), *(again(*each) for each in ((3, 3), (4, 1), (6, 3)))]
)
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_steps_per_epoch_beyond_the_data_are_those_of_keras(strategy, steps, together):
    seen = Seen(), Seen()
    kerass = linear(steps_per_execution=together)
    arguments = {"epochs": 4, "steps_per_epoch": steps, "verbose": 0}
    theirs = kerass.fit(batches(), callbacks=[seen[0]], shuffle=False, **arguments)
    with strategy.scope():
        model = linear(steps_per_execution=together)
    ours = fit(model, batches(), callbacks=[seen[1]], **arguments)

    assert seen[1].epochs == seen[0].epochs
    assert int(model.optimizer.iterations.numpy()) == int(kerass.optimizer.iterations.numpy())
    assert ours.history["loss"] == pytest.approx(theirs.history["loss"], rel=1e-5)


def test_data_that_end_before_the_steps_are_named(strategy):
    with strategy.scope():
        model = linear()
    with pytest.warns(UserWarning, match="ran out of data"):
        fit(model, batches(), steps_per_epoch=6, verbose=0)
    with pytest.warns(UserWarning, match="ran out of data"):
        evaluate(model, batches(), steps=6, verbose=0)


def test_repeat_begins_the_data_again(strategy):
    with strategy.scope():
        model = linear()
    seen = Seen()
    fit(model, batches(), epochs=2, steps_per_epoch=6, repeat=True, callbacks=[seen], verbose=0)

    assert seen.epochs == [[*range(6)], [*range(6)]]
    assert int(model.optimizer.iterations.numpy()) == 12


@pytest.mark.skipif(
    not hasattr(getattr(keras, "config", None), "set_max_epochs"), reason="this Keras has no such limits"
)
def test_limits_of_keras_hold(strategy):
    with strategy.scope():
        model = linear()
    seen = Seen()
    keras.config.set_max_epochs(2)
    keras.config.set_max_steps_per_epoch(3)
    try:
        with pytest.warns(UserWarning, match="Limiting"):
            fit(model, batches().repeat(), epochs=9, callbacks=seen, verbose=0)
        with pytest.warns(UserWarning, match="Limiting"):
            assert len(predict(model, batches(), verbose=0)) == 3 * 5
    finally:
        keras.config.set_max_epochs(None)
        keras.config.set_max_steps_per_epoch(None)

    assert seen.epochs == [[0, 1, 2], [0, 1, 2]]


def test_evaluates_and_predicts_uneven_batches(strategy):
    with strategy.scope():
        model = linear()
    x, y = points()
    found = predict(model, batches(7), strategy=strategy)

    assert found == pytest.approx(model(x).numpy(), rel=1e-5)
    expected = {"loss": np.mean((found - y) ** 2), "mae": np.mean(np.abs(found - y))}
    assert evaluate(model, batches(7), strategy=strategy, verbose=0, return_dict=True) == pytest.approx(
        expected, rel=1e-5
    )


class Doubling(keras.Model):
    """A model that predicts in a way of its own, from all that a batch holds."""

    def __init__(self):
        super().__init__()
        self.layer = keras.layers.Dense(1)

    def call(self, x):
        return self.layer(x)

    def predict_step(self, data):
        x, y = data
        return {"twice": 2 * self(x, training=False), "seen": y}


def test_predicts_in_the_way_of_the_model(strategy):
    with strategy.scope():
        model = Doubling()
        model(points()[0])
        model.compile("sgd", "mse")
    found = predict(model, batches(7), strategy=strategy)
    x, y = points()
    assert found["twice"] == pytest.approx(2 * model(x).numpy(), rel=1e-5)
    assert found["seen"] == pytest.approx(y)


def test_stops_in_the_middle_of_an_epoch(strategy):
    with strategy.scope():
        model = linear()

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = batch == 1

    history = fit(model, batches(), strategy=strategy, epochs=5, callbacks=[Stop()], verbose=0)

    assert history.epoch == [0]
    assert int(model.optimizer.iterations.numpy()) == 2


def test_refuses_a_model_that_is_not_compiled(strategy):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    with pytest.raises(ConfigError, match="is not compiled"):
        fit(model, batches(), strategy=strategy, verbose=0)


def test_refuses_what_is_no_model():
    with pytest.raises(ConfigError, match="expected a Keras model, received a int"):
        fit(3, batches(), verbose=0)


class Own(keras.Model):
    logged = "mine"

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
        gradients = tape.gradient(loss, self.trainable_variables)
        # With jit_compile, Keras 2.12 converts this, and its AutoGraph knows no strict.
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))  # noqa: B905
        return {self.logged: loss}


@pytest.mark.parametrize("is_stateful", [False, True])
def test_refuses_states_that_replicas_would_not_continue(is_stateful):
    inputs = keras.Input((3, 1), batch_size=4)
    layer = keras.layers.Bidirectional(keras.layers.GRU(2, stateful=is_stateful))
    model = keras.Model(inputs, layer(inputs))
    refused = (
        pytest.raises(ConfigError, match="is stateful: each sequence")
        if is_stateful
        else contextlib.nullcontext()
    )
    with refused:
        check_states(model, SimpleNamespace(num_replicas_in_sync=2))
    check_states(model, SimpleNamespace(num_replicas_in_sync=1))


class LossesOfBatches(keras.callbacks.Callback):
    """Note the loss that callbacks get at the end of each batch."""

    def __init__(self):
        super().__init__()
        self.losses = []

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(logs["loss"])


class Untracked(Own):
    """Return the loss without counting it in the metric of the same name."""

    logged = "loss"


@pytest.mark.skipif(keras.__version__ < "3", reason="Keras 2 has no metric for the loss of such a step")
def test_callbacks_of_batches_get_the_logs_of_the_step_itself(strategy):
    expected, found = LossesOfBatches(), LossesOfBatches()
    with strategy.scope():
        kerass, ours = (of_its_own(Untracked) for _ in range(2))
    history = kerass.fit(batches(), epochs=2, shuffle=False, verbose=0, callbacks=[expected])
    own = fit(ours, batches(), strategy=strategy, epochs=2, verbose=0, callbacks=[found])

    assert min(expected.losses) > 0
    assert found.losses == pytest.approx(expected.losses, rel=1e-5)
    assert own.history == history.history  # Keras takes the results of the metrics there


class Nothing(keras.Model):
    def train_step(self, data):
        return None


class Functions(keras.Model):
    def make_train_function(self, force=False):
        return super().make_train_function(force)


def of_its_own(kind, **options):
    keras.utils.set_random_seed(2)
    inputs = keras.Input((3,))
    model = kind(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse", **options)
    return model


@pytest.mark.parametrize(
    "options",
    [
        {"run_eagerly": True},
        {"jit_compile": True, "steps_per_execution": 3},
        *map(again, ({}, {"steps_per_execution": 3})),
    ],
)
def test_runs_a_train_step_of_its_own_as_keras_does(strategy, options):
    with strategy.scope():
        kerass, ours = (of_its_own(Own, **options) for _ in range(2))
    expected = kerass.fit(batches(), epochs=2, validation_data=batches(), shuffle=False, verbose=0)
    found = fit(ours, batches(), strategy=strategy, epochs=2, validation_data=batches(), verbose=0)

    assert set(found.history) == set(expected.history) == {"mine", "val_loss"}
    for name, values in expected.history.items():
        assert found.history[name] == pytest.approx(values, rel=1e-5)


@pytest.mark.parametrize("kind", [Own, keras.Model])
def test_tensorflow_takes_the_steps_of_many_models_for_no_retracing(strategy, kind, caplog):
    for _ in range(5):
        with strategy.scope():
            model = of_its_own(kind)
        fit(model, batches().take(1), strategy=strategy, verbose=0)
        predict(model, batches().take(1), strategy=strategy, verbose=0)
    assert not caplog.messages


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Nothing, "expected a dict from train_step, received a NoneType"),
        (Functions, "overrides make_train_function, which tfdist does not call"),
    ],
)
def test_refuses_methods_that_say_nothing_to_it(strategy, kind, words):
    with strategy.scope():
        model = of_its_own(kind)
    with pytest.raises(ConfigError, match=words):
        fit(model, batches(), strategy=strategy, verbose=0)


def test_xla_computes_the_same(strategy):
    losses = []
    for compiles in (True, False):
        with strategy.scope():
            model = linear(jit_compile=compiles)
        losses.append(fit(model, batches(), strategy=strategy, epochs=2, verbose=0).history["loss"])

    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_refuses_a_model_of_another_scope(strategy):
    with pytest.raises(ConfigError, match=r"within `with strategy.scope\(\):`"):
        fit(linear(), batches(), strategy=strategy, verbose=0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"epochs": -1}, "epochs: expected a whole number of at least 0, received -1"),
        ({"steps_per_epoch": 0}, "steps_per_epoch: expected a whole number of at least 1"),
        ({"validation_freq": 1.5}, "received 1.5"),
    ],
)
def test_refuses_counts_that_mean_nothing(strategy, options, words):
    with pytest.raises(ConfigError, match="expected") as caught:
        fit(linear(), batches(), strategy=strategy, verbose=0, **options)

    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (batches().repeat(), "never ends"),
        (batches().take(0), "contain no batch"),
        (lambda context: points(), "expected a tf.data.Dataset returned"),
        (None, "x: is None"),
    ],
)
def test_refuses_data_that_it_cannot_train_on(strategy, data, words):
    with strategy.scope():
        model = linear()
    with pytest.raises(DataError, match=words):
        fit(model, data, strategy=strategy, verbose=0)


def test_refuses_data_without_targets_that_the_loss_needs(strategy):
    with strategy.scope():
        model = linear()
    without = batches().map(lambda x, y: x)
    for data in ({"x": without}, {"x": batches(), "validation_data": without}):
        with pytest.raises(DataError, match=r"have no targets, and the loss .* yield \(x, y\)"):
            fit(model, **data, verbose=0)


@pytest.mark.parametrize(("weights", "received"), [("balanced", "'balanced'"), (np.ones(2), "array")])
def test_refuses_weights_of_classes_that_are_no_dict(strategy, weights, received):
    with strategy.scope():
        model = linear()
    with pytest.raises(DataError, match=rf"class_weight: expected a dict .* received {received}.* Pass dict"):
        fit(model, batches(), class_weight=weights, verbose=0)


def test_validates_after_the_epochs_that_are_named(strategy):
    arguments = {"epochs": 3, "validation_freq": [1, 3], "callbacks": None, "verbose": 0}
    alone = linear().fit(batches(), validation_data=batches(), shuffle=False, **arguments)
    with strategy.scope():
        model = linear()
    ours = fit(model, batches(), validation_data=batches(), **arguments)

    assert len(ours.history["val_loss"]) == 2
    assert ours.history["val_loss"] == pytest.approx(alone.history["val_loss"], rel=1e-5)


def test_refuses_in_its_scope_a_model_made_outside():
    strategy = tf.distribute.MirroredStrategy(["/cpu:0"])
    model = linear()
    with strategy.scope(), pytest.raises(ConfigError, match=r"within `with strategy.scope\(\):`"):
        fit(model, batches(), strategy=strategy, verbose=0)


@pytest.mark.skipif(keras.__version__ < "3", reason="Keras 2 logs what compute_metrics returns")
def test_logs_of_compute_metrics_are_named_and_those_of_get_metrics_result_are_there(strategy, caplog):
    class Twice(keras.Sequential):
        def compute_metrics(self, x, y, y_pred, sample_weight=None):
            results = super().compute_metrics(x, y, y_pred, sample_weight)
            return {**results, "twice": 2 * results["loss"]}

    class TwiceInResults(keras.Sequential):
        def get_metrics_result(self):
            results = super().get_metrics_result()
            return {**results, "twice": 2 * results["loss"]}

    logs = {}
    for kind in (Twice, TwiceInResults):
        with strategy.scope():
            model = kind([keras.Input((3,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        logs[kind] = fit(model, *points(), strategy=strategy, verbose=0).history

    assert caplog.text.count("the logs leave out what compute_metrics adds: twice.") == 1
    assert "twice" not in logs[Twice]
    assert logs[TwiceInResults]["twice"] == pytest.approx([2 * loss for loss in logs[TwiceInResults]["loss"]])


def test_no_epoch_leaves_the_weights_as_they_are():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1, use_ema=True), "mse")
    before = model.get_weights()
    fit(model, np.ones((4, 2)), np.ones((4, 1)), epochs=0, verbose=0)
    for mine, its in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(mine, its)


class LargestWeight(keras.metrics.Metric):
    """A metric that is no sum, where examples have weights."""

    def __init__(self):
        super().__init__(name="largest")
        self.largest = self.add_weight(name="largest", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        if sample_weight is not None:
            self.largest.assign(tf.maximum(self.largest, tf.reduce_max(sample_weight)))

    def result(self):
        return tf.convert_to_tensor(self.largest)


@pytest.mark.skipif(keras.__version__ < "3", reason="Keras 2 counts in variables of its own")
def test_a_metric_counts_weights_of_the_validation_data_alone():
    weights = np.linspace(0.1, 0.9, 12).astype("float32")

    def logged(fitted):
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", weighted_metrics=[LargestWeight()])
        x, y = np.ones((12, 2)), np.ones((12, 1))
        runs = [{"validation_data": (x, y, weights)}, {"sample_weight": weights}]
        found = [fitted(model, x, y, batch_size=4, verbose=0, shuffle=False, **run).history for run in runs]
        return [each["val_largest"] if "val_largest" in each else each["largest"] for each in found]

    assert logged(fit) == logged(keras.Model.fit)
