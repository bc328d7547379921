"""Steps of a user's own that reduce losses and change gradients by themselves train on two devices as in one process."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from again import again  # noqa: E402  # after the check that TensorFlow is there
from several_devices import HAS_SEVERAL, WITH_AGAIN, own_strategy, run_on_several  # noqa: E402  # after the check that TensorFlow is there
from tfdist.errors import ConfigError  # noqa: E402
from tfdist.training.fit import fit  # noqa: E402

keras = tf.keras
pytestmark = [
    pytest.mark.skipif(
        keras.__version__ < "3", reason="a custom step of Keras 2 is run as Keras's own fit runs it"
    ),
    pytest.mark.usefixtures("in_float64"),
]
COUNT = 13  # in batches of 4: the last leaves a replica without any
RNG = np.random.default_rng(1)
WORDS = RNG.integers(0, 5, (COUNT, 3))
X, Y = RNG.normal(size=(COUNT, 4)), RNG.normal(size=(COUNT, 2))
Y[4:6] = -9.0  # what is masked: all of the first replica's part of the second batch


@pytest.fixture(scope="module")
def strategy():
    return own_strategy()


@pytest.mark.skipif(HAS_SEVERAL, reason="this is what it starts")
@pytest.mark.usefixtures("forking")
@pytest.mark.parametrize("words", WITH_AGAIN)
def test_all_of_this_holds_on_several_devices(words):
    run_on_several(__file__, words)


class Own(keras.Model):
    """A model that trains by a loss of its own, on gradients that it may change."""

    def __init__(self, loss_of, change=lambda gradients, _: gradients, **options):
        super().__init__(**options)
        self.loss_of, self.change = loss_of, change
        self.table = keras.layers.Embedding(5, 2)
        self.dense = keras.layers.Dense(2, "tanh", kernel_regularizer="l2")
        self.seen, self.norm = keras.metrics.Mean(name="seen"), keras.metrics.Mean(name="norm")

    def call(self, inputs):
        words, numbers = inputs
        return self.dense(numbers) + tf.reduce_mean(self.table(words), axis=1)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.loss_of(self, y, self(x, training=True))
        variables = self.trainable_variables
        gradients = self.change(tape.gradient(loss, variables), variables)
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        self.seen.update_state(loss)
        return {"seen": self.seen.result()}

    def test_step(self, data):
        x, y = data
        self.seen.update_state(self.loss_of(self, y, self(x, training=False)))
        return {"seen": self.seen.result()}


def squares(y, p):
    return tf.reduce_mean(tf.square(y - p), axis=-1)


def mask(y):
    return tf.cast(y[:, 0] > -9.0, tf.float64)


def of_keras_with_mask(y, p):
    p._keras_mask = mask(y) > 0
    found = keras.losses.MeanSquaredError(reduction=None)(y, p)
    del p._keras_mask
    return found


LOSSES = {
    "of each example": lambda _, y, p: keras.losses.get("mse")(y, p),
    "of each example of Keras": lambda _, y, p: keras.losses.MeanSquaredError(reduction=None)(y, p),
    "of each value": lambda _, y, p: tf.square(y - p),
    "masked, of each example of Keras": lambda _, y, p: (
        tf.reduce_sum(of_keras_with_mask(y, p) * mask(y)) / tf.reduce_sum(mask(y))
    ),
    "sum": lambda _, y, p: tf.reduce_sum(squares(y, p)),
    "by a constant": lambda _, y, p: tf.reduce_sum(squares(y, p)) / 4.0,
    "compute_average_loss": lambda _, y, p: tf.nn.compute_average_loss(squares(y, p), global_batch_size=4),
    "mean": lambda _, y, p: tf.reduce_mean(squares(y, p)),
    "mean and sum and penalty": lambda m, y, p: (
        0.5 * (tf.reduce_mean(tf.abs(y - p)) - 0.1 * tf.reduce_sum(tf.square(p)) + tf.add_n(m.losses))
    ),
    "sum and Keras's sum": lambda _, y, p: (
        keras.losses.MeanSquaredError(reduction="sum")(y, p) + tf.reduce_sum(tf.abs(p)) + tf.reduce_mean(p)
    ),
    "masked": lambda _, y, p: (
        tf.reduce_sum(squares(y, p) * mask(y)) / tf.maximum(tf.reduce_sum(mask(y)), 1.0)
    ),
    "masked, with an epsilon": lambda _, y, p: (
        tf.reduce_sum(squares(y, p) * mask(y)) / (tf.reduce_sum(mask(y)) + 1e-7) + tf.reduce_mean(p)
    ),
    "masked, as it is": lambda _, y, p: 2.0 * tf.reduce_sum(squares(y, p) * mask(y)) / tf.reduce_sum(mask(y)),
}


def clipped(gradients, variables):
    return tf.clip_by_global_norm(gradients, 0.05)[0]


def dense(gradients):
    return [tf.convert_to_tensor(gradient) for gradient in gradients]


def both(strategy, made, data):
    """Return what Keras's own fit logs and learns in one process, and what tfdist's does under the strategy."""
    kerass = made()
    expected = kerass.fit(data, epochs=2, shuffle=False, verbose=0, validation_data=data).history
    with strategy.scope():
        ours = made()
    found = fit(ours, data, epochs=2, verbose=0, validation_data=data).history
    return (expected, kerass.get_weights()), (found, ours.get_weights())


def in_train(strategy, optimizer, *arguments, run_eagerly=False):
    """Return both for a model with a step of its own."""
    data = tf.data.Dataset.from_tensor_slices(((WORDS, X), Y)).batch(4)

    def made():
        keras.utils.set_random_seed(1)
        model = Own(*arguments)
        model((WORDS[:1], X[:1]))
        model.compile(optimizer(), run_eagerly=run_eagerly)
        return model

    return both(strategy, made, data)


def check(kerass, ours):
    (expected, weights), (found, own_weights) = kerass, ours
    assert set(found) == set(expected)
    for name, values in expected.items():
        assert found[name] == pytest.approx(values, rel=1e-6), name  # Keras adds up its logs in float32
    for mine, its in zip(own_weights, weights, strict=True):
        assert mine == pytest.approx(its, rel=1e-7, abs=1e-11)  # as exact as an epsilon of 1e-7 allows


class AllLosses(keras.Model):
    """A model that trains a layer by each of the losses."""

    def __init__(self):
        super().__init__()
        self.layers_of = {name: keras.layers.Dense(2, "tanh", kernel_regularizer="l2") for name in LOSSES}
        self.seen = {name: keras.metrics.Mean(name=name.replace(" ", "_")) for name in LOSSES}
        self.built = True

    def numbers(self, data):
        x, y = data
        for name, loss_of in LOSSES.items():
            layer = self.layers_of[name]
            yield name, layer.trainable_variables, loss_of(layer, y, layer(x))

    def train_step(self, data):
        with tf.GradientTape(persistent=True) as tape:
            found = list(self.numbers(data))
        variables = [variable for _, owned, _ in found for variable in owned]
        gradients = [gradient for _, owned, loss in found for gradient in tape.gradient(loss, owned)]
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return self.counted(found)

    def test_step(self, data):
        return self.counted(list(self.numbers(data)))

    def counted(self, found):
        for name, _, loss in found:
            self.seen[name].update_state(loss)
        return {each.name: each.result() for each in self.seen.values()}


@pytest.mark.skipif(not HAS_SEVERAL, reason="one device computes the whole")
@pytest.mark.parametrize("has_one_size", [False, again(True)], ids=["batches of any size", "of one size"])
def test_a_loss_counts_as_in_one_process(strategy, has_one_size, caplog):
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4, drop_remainder=has_one_size)

    def made():
        keras.utils.set_random_seed(1)
        model = AllLosses()
        for layer in model.layers_of.values():
            layer.build((None, 4))
        model.compile(keras.optimizers.SGD(0.1))
        return model

    check(*both(strategy, made, data))
    assert "as far as its graph shows" not in caplog.text


class Overriding(keras.Model):
    """A model that overrides how Keras computes its loss."""

    loss_of = None

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return self.loss_of(y, y_pred)


IN_FIT = [
    ("compute_loss", "mean and sum and penalty"),
    *(again("compute_loss", name) for name in ("sum", "masked, with an epsilon")),
    ("function", "masked, as it is"),
    again("function", "by a constant"),
    ("loss", "masked"),
    again("loss", "sum"),
    ("normalized", "mean"),
    ("layer", "sum"),
    again("layer", "sum_over_batch_size"),
]


class OwnCall(keras.losses.Loss):
    """A loss that does not let Keras reduce it."""

    def __init__(self, loss_of):
        super().__init__()
        self.loss_of = loss_of

    def __call__(self, y_true, y_pred, sample_weight=None):
        return self.loss_of(self, y_true, y_pred)


class Adding(keras.layers.Layer):
    """A layer that adds a loss for each example, a sum over the examples, and a mean."""

    def call(self, inputs):
        self.add_loss(tf.square(inputs)[:, 0])
        self.add_loss(tf.reduce_mean(tf.abs(inputs)))
        self.add_loss(0.1 * tf.reduce_sum(tf.square(inputs)))
        return inputs


@pytest.mark.skipif(not HAS_SEVERAL, reason="one device computes the whole")
@pytest.mark.parametrize(("kind", "name"), IN_FIT)
def test_fit_takes_such_a_loss_too(strategy, kind, name, caplog):
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)

    def made():
        keras.utils.set_random_seed(1)
        number = keras.Input((4,))
        hidden = keras.layers.Dense(2, "tanh", kernel_regularizer="l2")(number)
        if kind == "layer":
            hidden = Adding()(hidden)
        if kind == "normalized":
            hidden = keras.layers.BatchNormalization(synchronized=True)(hidden)
        model = (Overriding if kind == "compute_loss" else keras.Model)(number, keras.layers.Dense(2)(hidden))
        if kind == "layer":
            model.compile(keras.optimizers.SGD(0.1), keras.losses.MeanSquaredError(reduction=name))
            return model
        model.loss_of = lambda y, p: LOSSES[name](model, y, p)
        losses = {
            "compute_loss": None,
            "function": model.loss_of,
            "normalized": model.loss_of,
            "loss": OwnCall(LOSSES[name]),
        }
        model.compile(keras.optimizers.SGD(0.1), losses[kind])
        return model

    check(*both(strategy, made, data))
    assert "loss: returns one number" not in caplog.text


@pytest.mark.skipif(not HAS_SEVERAL, reason="one device computes the whole")
@pytest.mark.parametrize(
    ("change", "run_eagerly"),
    [
        (clipped, False),
        again(clipped, True),
        (
            lambda gradients, variables: [
                g + 0.1 * v for g, v in zip(dense(gradients), variables, strict=False)
            ],
            False,
        ),
    ],
    ids=["clipped", "clipped eagerly", "decayed"],
)
def test_a_step_changes_the_gradients_of_the_whole_batch(strategy, change, run_eagerly):
    optimizer = lambda: keras.optimizers.Adagrad(0.1, global_clipnorm=0.04)  # noqa: E731
    check(*in_train(strategy, optimizer, LOSSES["mean"], change, run_eagerly=run_eagerly))


@pytest.mark.skipif(not HAS_SEVERAL, reason="one device computes the whole")
def test_a_step_that_only_reads_gradients_reads_those_of_the_whole_batch(strategy):
    class Reading(Own):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = keras.losses.MeanSquaredError()(y, self(x, training=True))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply(gradients, self.trainable_variables)
            self.norm.update_state(tf.linalg.global_norm(gradients))
            return {"norm": self.norm.result()}

    def norms(fitted):
        keras.utils.set_random_seed(1)
        model = Reading(None)
        model((WORDS[:1], X[:1]))
        model.compile(keras.optimizers.SGD(0.1))
        return fitted(model, (WORDS, X), Y, batch_size=4, epochs=2, verbose=0, shuffle=False).history["norm"]

    expected = norms(keras.Model.fit)
    with strategy.scope():
        assert norms(fit) == pytest.approx(expected, rel=1e-6)


class Calling(Own):
    """A model whose step calls a tf.function that computes and clips the gradients."""

    def train_step(self, data):
        x, y = data
        loss, gradients = self.clipped_gradients(x, y)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.seen.update_state(loss)
        return {"seen": self.seen.result()}

    @tf.function
    def clipped_gradients(self, x, y):
        with tf.GradientTape() as tape:
            loss = self.masked_loss(y, self(x, training=True))
        gradients = dense(tape.gradient(loss, self.trainable_variables))
        if tf.linalg.global_norm(gradients) > 0.04:  # which AutoGraph converts
            gradients = [gradient / 2.0 for gradient in gradients]
        return loss, gradients

    @tf.function(autograph=False)
    def masked_loss(self, y, y_pred):
        return self.loss_of(self, y, y_pred)


@pytest.mark.skipif(not HAS_SEVERAL, reason="one device computes the whole")
@pytest.mark.parametrize(("name", "run_eagerly"), [("masked", False), again("mean", True)])
def test_a_function_of_a_step_computes_as_in_one_process(strategy, name, run_eagerly, caplog):
    def made():
        keras.utils.set_random_seed(1)
        model = Calling(LOSSES[name])
        model((WORDS[:1], X[:1]))
        model.compile(keras.optimizers.SGD(0.1), run_eagerly=run_eagerly)
        return model

    check(*both(strategy, made, tf.data.Dataset.from_tensor_slices(((WORDS, X), Y)).batch(4)))
    assert "as far as its graph shows" not in caplog.text


BRANCH, TAPE = "a branch, a loop or a tf.function", "a tape that still records"


@pytest.mark.skipif(not HAS_SEVERAL, reason="one device computes the whole")
@pytest.mark.parametrize(
    ("where", "changed"),
    [
        (BRANCH, "within"),
        (TAPE, "after"),
        (BRANCH, "nowhere"),
        *(again(*each) for each in ((BRANCH, "after"), (TAPE, "within"), (TAPE, "nowhere"))),
    ],
)
def test_gradients_that_are_changed_where_replicas_exchange_nothing_are_named(
    strategy, where, changed, caplog
):
    class Apart(Own):
        def train_step(self, data):
            x, y = data
            of_step = lambda: self.gradients_of_part(x, y)  # noqa: E731
            if where == TAPE:
                with tf.GradientTape():
                    gradients = of_step()
            else:
                gradients = tf.cond(tf.shape(y)[1] > 1, of_step, of_step)
            gradients = clipped(gradients, None) if changed == "after" else gradients
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {}

        def gradients_of_part(self, x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(squares(y, self(x, training=True)))
            gradients = dense(tape.gradient(loss, self.trainable_variables))
            scaled = [2.0 * gradient for gradient in gradients]
            return clipped(scaled, None) if changed == "within" else scaled

    with strategy.scope():
        model = Apart(None)
        model((WORDS[:1], X[:1]))
        model.compile(keras.optimizers.SGD(0.1))
        fit(model, (WORDS, X), Y, batch_size=4, verbose=0)
    is_named = changed != "nowhere" or where == TAPE
    assert caplog.text.count(f"reads or changes gradients of weights within {where}") == is_named


class Looping(Calling):
    """A model whose step makes several updates in a loop."""

    loop = staticmethod(tf.range)

    @tf.function
    def train_step(self, data):
        x, y = data
        for _ in self.loop(2):
            loss, gradients = self.clipped_gradients(x, y)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            self.seen.update_state(loss)
        return {"seen": self.seen.result()}


class Repeating(Looping):
    loop = range


@pytest.mark.skipif(not HAS_SEVERAL, reason="one device exchanges nothing")
def test_a_loop_makes_no_updates_but_that_of_python(strategy):
    def made(kind):
        keras.utils.set_random_seed(1)
        model = kind(LOSSES["mean"])
        model((WORDS[:1], X[:1]))
        model.compile(keras.optimizers.SGD(0.1))
        return model

    data = tf.data.Dataset.from_tensor_slices(((WORDS, X), Y)).batch(4)
    check(*both(strategy, lambda: made(Repeating), data))
    with strategy.scope():
        model = made(Looping)
    with pytest.raises(ConfigError, match=r"updates variables in a branch, a loop or .*Python's range"):
        fit(model, data, verbose=0)


NO_MEANS = {
    "root of a mean": lambda _, y, p: tf.sqrt(tf.reduce_mean(squares(y, p))),
    "mean of a mean": lambda _, y, p: tf.reduce_mean(squares(y, p) * tf.exp(tf.reduce_mean(y))),
    "sum over a variance": lambda _, y, p: (
        tf.reduce_sum(squares(y, p)) / tf.reduce_sum(tf.square(y - tf.reduce_mean(y)))
    ),
}


@pytest.mark.skipif(not HAS_SEVERAL, reason="one device computes the whole")
@pytest.mark.parametrize("name", NO_MEANS)
def test_another_number_than_a_mean_or_a_sum_is_named(strategy, name, caplog):
    in_train(strategy, lambda: keras.optimizers.SGD(0.1), NO_MEANS[name])
    assert caplog.text.count("train_step of model own") == 1
    assert "neither a mean nor a sum" in caplog.text


@pytest.mark.skipif(not HAS_SEVERAL, reason="one device runs the step as it is")
def test_run_eagerly_runs_what_no_graph_can(strategy):
    def loss_of(_, y, p):
        loss = tf.reduce_mean(squares(y, p))
        assert float(loss) >= 0
        return loss

    check(*in_train(strategy, lambda: keras.optimizers.SGD(0.1), loss_of, run_eagerly=True))


@pytest.mark.skipif(not HAS_SEVERAL, reason="test_fit.py has one device")
def test_run_eagerly_runs_metrics_that_no_graph_can(strategy):
    def largest(y_true, y_pred):
        return np.max(np.abs(y_true.numpy() - y_pred.numpy()), axis=-1)

    def logged(fitted):
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        model.compile("sgd", "mse", metrics=[largest], run_eagerly=True)
        return fitted(model, X, Y, batch_size=4, epochs=2, verbose=0, shuffle=False).history

    expected = logged(keras.Model.fit)
    with strategy.scope():
        found = logged(fit)
    for name, values in expected.items():
        assert found[name] == pytest.approx(values, rel=1e-6), name


class NamesItsMetrics(keras.Model):
    """A model with a step of its own, whose `metrics` leave out those of the losses of its outputs."""

    def __init__(self, *inputs_and_outputs):
        super().__init__(*inputs_and_outputs)
        self.seen = keras.metrics.Mean(name="seen")

    @property
    def metrics(self):
        return [self.seen]

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        self.seen.update_state(loss)
        return {"seen": self.seen.result()}


class NamesItsLoss(keras.Model):
    """A model that Keras trains, whose `metrics` are that of its whole loss."""

    @property
    def metrics(self):
        return [self._loss_tracker]


@pytest.mark.parametrize("base", [NamesItsMetrics, NamesItsLoss])
def test_a_model_of_several_outputs_may_name_its_own_metrics(strategy, base):
    def made():
        keras.utils.set_random_seed(1)
        number = keras.Input((4,))
        outputs = [keras.layers.Dense(2, name=name)(number) for name in ("one", "other")]
        model = base(number, outputs)
        model.compile(keras.optimizers.SGD(0.1), ["mse", "mae"])
        return model

    options = {"batch_size": 4, "epochs": 2, "shuffle": False, "verbose": 0}
    kerass = made()
    kerass.fit(X, [Y, Y], **options)
    with strategy.scope():
        ours = made()
    fit(ours, X, [Y, Y], **options)
    for mine, its in zip(ours.get_weights(), kerass.get_weights(), strict=True):
        assert mine == pytest.approx(its, rel=1e-6, abs=1e-7)
