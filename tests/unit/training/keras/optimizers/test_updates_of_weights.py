"""Updates of weights are those of Keras's own fit on two devices: by constraints, optimizers, loss scales."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from again import again  # noqa: E402  # after the check that TensorFlow is there
from several_devices import HAS_SEVERAL, WITH_AGAIN, own_strategy, run_on_several  # noqa: E402  # after the check that TensorFlow is there
from tfdist.training.fit import fit  # noqa: E402

keras = tf.keras
pytestmark = [
    pytest.mark.skipif(keras.__version__ < "3", reason="Keras 2 updates weights itself"),
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
@pytest.mark.usefixtures("forking")
@pytest.mark.parametrize("words", WITH_AGAIN)
def test_all_of_this_holds_on_several_devices(words):
    run_on_several(__file__, words)


def model_of(constraint, optimizer):
    keras.utils.set_random_seed(1)
    unused = keras.layers.Dense(2, kernel_constraint=constraint, name="unused")
    number = keras.Input((4,))
    model = keras.Model(number, [keras.layers.Dense(2, kernel_constraint=constraint)(number), unused(number)])
    model.compile(optimizer(), ["mse", None])
    return model


class Wrapping(keras.optimizers.Optimizer):
    """An optimizer that leaves the work to one of Keras's, as those of users do."""

    def __init__(self, inner):
        super().__init__(learning_rate=0.0)
        self.inner_optimizer = inner

    def build(self, variables):
        super().build(variables)
        self.inner_optimizer.build(variables)

    def apply(self, grads, trainable_variables=None):
        self.inner_optimizer.apply(
            [None if each is None else 2 * each for each in grads], trainable_variables
        )


def several():
    kernels = keras.optimizers.Adam(0.1, clipnorm=0.2, gradient_accumulation_steps=2)
    others = keras.optimizers.SGD(0.5, momentum=0.9)
    choice = keras.optimizers.OptimizerMap(others, {".*kernel": kernels})
    return keras.optimizers.MultiOptimizer(choice, loss_scale_factor=4.0)


OPTIMIZERS = {
    **({"several": several} if hasattr(keras.optimizers, "MultiOptimizer") else {}),
    "wrapped": lambda: Wrapping(keras.optimizers.SGD(0.5, clipnorm=0.3)),
    "plain": lambda: keras.optimizers.SGD(0.5),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5), initial_scale=8.0),
    "accumulating": lambda: keras.optimizers.SGD(0.5, gradient_accumulation_steps=2),
}


KERASS, OWN = keras.constraints.MaxNorm(0.3), OfNames()
OF_OWN = {"several", "accumulating"}


@pytest.mark.parametrize(
    ("constraint", "optimizer"),
    [
        *((OWN if name in OF_OWN else KERASS, name) for name in OPTIMIZERS),
        *(again(KERASS if name in OF_OWN else OWN, name) for name in OPTIMIZERS),
    ],
)
def test_the_weights_are_those_of_kerass_own_fit(constraint, optimizer):
    kerass = model_of(constraint, OPTIMIZERS[optimizer])
    kerass.fit(X, (Y, Y), batch_size=4, epochs=2, shuffle=False, verbose=0)
    with own_strategy().scope():
        ours = model_of(constraint, OPTIMIZERS[optimizer])
    fit(ours, X, (Y, Y), batch_size=4, epochs=2, shuffle=False, verbose=0)
    for mine, its in zip(ours.get_weights(), kerass.get_weights(), strict=True):
        assert mine == pytest.approx(its, rel=1e-4, abs=1e-5)


class OwnStep(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.optimizer.scale_loss(self.compute_loss(x, y, self(x, training=True)))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


class Discriminative(keras.optimizers.SGD):
    """An optimizer that changes gradients before it applies them."""

    def apply(self, grads, trainable_variables=None):
        super().apply([0.5 * gradient for gradient in grads], trainable_variables)


def plain_several():
    choice = keras.optimizers.OptimizerMap(
        keras.optimizers.SGD(0.5), {".*kernel": keras.optimizers.Adam(0.1)}
    )
    return keras.optimizers.MultiOptimizer(choice)


IN_FIT, IN_OWN_STEP = (
    [*(["several"] if "several" in OPTIMIZERS else []), "scaled"],
    ["wrapped", "discriminative"],
)


@pytest.mark.parametrize(
    ("optimizer", "base"),
    [
        *((name, keras.Model) for name in IN_FIT),
        *((name, OwnStep) for name in IN_OWN_STEP),
        *(again(name, OwnStep) for name in IN_FIT),
        *(again(name, keras.Model) for name in IN_OWN_STEP),
    ],
)
def test_an_optimizer_that_delegates_or_overrides_takes_kerass_steps(optimizer, base):
    def model():
        keras.utils.set_random_seed(1)
        own = Discriminative(0.5, clipnorm=0.3)
        scaled = keras.optimizers.LossScaleOptimizer(own, initial_scale=8.0)
        kinds = {"several": plain_several, "wrapped": OPTIMIZERS["wrapped"], "scaled": lambda: scaled}
        number = keras.Input((4,))
        made = base(number, keras.layers.Dense(2)(number))
        made.compile(kinds.get(optimizer, lambda: own)(), "mse")
        return made

    kerass = model()
    kerass.fit(X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0)
    with own_strategy().scope():
        ours = model()
    fit(ours, X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0)
    for mine, its in zip(ours.get_weights(), kerass.get_weights(), strict=True):
        assert mine == pytest.approx(its, rel=1e-4, abs=1e-5)
    for mine, its in zip(ours.optimizer.variables, kerass.optimizer.variables, strict=True):
        assert np.asarray(mine) == pytest.approx(np.asarray(its), rel=1e-4, abs=1e-5)


class Bias(keras.layers.Layer):
    """A table of which each example gets the same rows, some of them several times, as in Swin transformers."""

    ROWS = np.array([0, 1, 2, 1, 0, 1])

    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def build(self, shape):
        self.table = self.add_weight(shape=(4, 2), initializer="glorot_uniform")
        if self.kind == "weight":
            self.rows = self.add_weight(shape=(6,), dtype="int32", trainable=False, initializer="zeros")
            self.rows.assign(self.ROWS)
        else:
            self.rows = tf.Variable(self.ROWS, trainable=False) if self.kind == "variable" else self.ROWS

    def call(self, x):
        return x + tf.reshape(tf.gather(self.table, tf.convert_to_tensor(self.rows)), (1, 12))


KINDS = {
    "constant": lambda: (Bias("constant"), keras.Model, {}),
    "variable": lambda: (Bias("variable"), keras.Model, {"clipnorm": 0.1}),
    "weight": lambda: (Bias("weight"), OwnStep, {"clipvalue": 0.02}),
    "synchronized": lambda: (Bias("constant"), keras.Model, {"global_clipnorm": 0.1}),
}


@pytest.mark.parametrize("kind", [again(kind) if kind == "constant" else kind for kind in KINDS])
def test_rows_that_are_the_same_for_all_examples_have_kerass_slices(kind):
    def model():
        keras.utils.set_random_seed(1)
        x = keras.Input((12,))
        bias, base, options = KINDS[kind]()
        hidden = keras.layers.BatchNormalization(synchronized=True)(x) if kind == "synchronized" else x
        made = base(x, keras.layers.Dense(2)(bias(hidden)))
        made.compile(keras.optimizers.Adam(0.01, **options), "mse")
        return made

    x = np.tile(X[:5], 3)  # one example in the last batch
    kerass = model()
    kerass.fit(x, Y[:5], batch_size=4, epochs=2, shuffle=False, verbose=0)
    with own_strategy().scope():
        ours = model()
    fit(ours, x, Y[:5], batch_size=4, epochs=2, shuffle=False, verbose=0)
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


def scheduled():
    return keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.5, 2, 0.5))


@pytest.mark.skipif(not HAS_SEVERAL, reason="one device has one copy")
@pytest.mark.parametrize(
    ("kind", "make"),
    [
        (keras.Model, scheduled),
        (OwnStep, keras.optimizers.Adam),
        again(keras.Model, keras.optimizers.Adam),
        again(OwnStep, scheduled),
    ],
)
def test_an_optimizer_may_be_made_outside_of_the_scope(kind, make):
    def model_of(optimizer):
        keras.utils.set_random_seed(1)
        number = keras.Input((4,))
        model = kind(number, keras.layers.Dense(2)(number))
        model.compile(optimizer, "mse")
        return model

    kerass, outside = model_of(make()), make()
    kerass.fit(X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0)
    with own_strategy().scope():
        ours = model_of(outside)
    fit(ours, X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0)
    assert int(ours.optimizer.iterations.numpy()) == int(kerass.optimizer.iterations.numpy())
    for mine, its in zip(ours.get_weights(), kerass.get_weights(), strict=True):
        assert mine == pytest.approx(its, rel=1e-4, abs=1e-5)


TOTALS = ["chosen_mean", "counts", "largest", "products", "rows", "seen", "sums", "variance"]


class Counting(keras.layers.Layer):
    """A layer with states that are sums and maxima over a batch, means, and examples."""

    def build(self, shape):
        options = {"initializer": "zeros", "trainable": False}
        self.seen = self.add_weight(name="seen", shape=(), aggregation="sum", **options)
        self.rows = self.add_weight(name="rows", shape=(), **options)
        for name in (
            "sums",
            "largest",
            "means",
            "quotients",
            "fixed",
            "unrolled",
            "calls",
            "chosen_mean",
            "variance",
        ):
            setattr(self, name, self.add_weight(name=name, shape=shape[1:], **options))
        for name in ("products", "counts", "chosen"):
            setattr(self, name, self.add_weight(name=name, shape=(shape[1], shape[1]), **options))
        self.queue = self.add_weight(name="queue", shape=(8, shape[1]), **options)
        self.last = self.add_weight(name="last", shape=shape[1:], **options)

    def call(self, inputs):
        rows = tf.cast(tf.shape(inputs)[0], "float32")
        self.seen.assign_add(1.0)
        self.rows.assign_add(rows)
        self.sums.assign(0.9 * self.sums + 0.1 * tf.reduce_sum(inputs, axis=0))
        self.largest.assign(tf.maximum(self.largest, tf.reduce_max(inputs, axis=0)))
        self.means.assign(0.9 * self.means + 0.1 * tf.reduce_mean(inputs, axis=0))
        self.quotients.assign(tf.reduce_sum(inputs, axis=0) / rows)
        self.fixed.assign(tf.reduce_sum(inputs, axis=0) / (inputs.shape[0] or rows))
        is_chosen = tf.cast(inputs > 0.5, inputs.dtype)
        self.chosen_mean.assign(tf.reduce_sum(inputs * is_chosen, 0) / tf.reduce_sum(is_chosen, 0))
        self.variance.assign(tf.reduce_mean(tf.square(inputs - tf.reduce_mean(inputs, axis=0)), axis=0))
        unrolled = tf.reduce_mean(inputs, axis=0)
        for _ in range(40):
            unrolled = unrolled + 0.1 * unrolled
        self.unrolled.assign(unrolled)
        self.calls.assign_add(tf.ones_like(self.calls))
        self.products.assign(tf.matmul(inputs, inputs, transpose_a=True) / 2.0)
        numbers = tf.argmax(inputs, axis=1)
        self.counts.assign(tf.math.unsorted_segment_sum(inputs, numbers, 4))
        self.queue.assign(tf.concat([inputs, self.queue[: -tf.shape(inputs)[0]]], axis=0))
        self.last.assign(inputs[-1])
        self.chosen.assign(tf.where(self.means > 0.5, tf.gather(self.queue, [0, 1, 2, 3]), self.chosen))
        return inputs


@pytest.mark.skipif(not HAS_SEVERAL, reason="one device has the whole batch")
@pytest.mark.parametrize("has_one_size", [True, False], ids=["one size", "any size"])
def test_a_sum_that_becomes_a_mean_is_named_once(has_one_size, caplog):
    with own_strategy().scope():
        model = keras.Sequential([keras.Input((4,)), Counting(), keras.layers.Dense(2)])
        model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(6, drop_remainder=has_one_size)
    fit(model, data, epochs=2, verbose=0)
    named = {"state": [], "layer": []}
    for words in map(str.split, caplog.messages):
        if "state" in words[:2]:
            named[words[0]].append(words[words.index("state") + 1].split("/")[-1])
    assert named["layer"] == TOTALS
    assert named["state"] == ["chosen", "last", "queue"]


@pytest.mark.skipif(not HAS_SEVERAL, reason="XLA compiles what one device computes")
def test_a_synchronized_layer_is_not_compiled_by_xla(caplog):
    with own_strategy().scope():
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((4,)), keras.layers.BatchNormalization(synchronized=True)])
        model.compile("sgd", "mse", jit_compile=True)
    fit(model, X, X, batch_size=4, verbose=0)
    assert "jit_compile has no effect: a synchronized layer exchanges values" in caplog.text


@pytest.mark.skipif(not HAS_SEVERAL, reason="one device has all examples")
@pytest.mark.parametrize("kind", ["convolution", again("recurrent")])
def test_a_replica_without_examples_computes_convolutions_before_a_synchronized_layer(kind):
    layers, shape = keras.layers, (6, 6, 3) if kind == "convolution" else (3, 5, 5, 1)
    x = RANDOM.normal(size=(5, *shape)).astype("float32")

    def model_of():
        keras.utils.set_random_seed(1)
        before = [layers.ConvLSTM2D(2, 3, return_sequences=True)]
        if kind == "convolution":
            before = [layers.SeparableConv2D(4, 3), layers.MaxPooling2D(2), layers.Conv2D(5, 2)]
        normal = layers.BatchNormalization(synchronized=True)
        model = keras.Sequential([keras.Input(shape), *before, normal, layers.Flatten(), layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.01), "mse")
        return model

    options = {"batch_size": 4, "epochs": 2, "shuffle": False, "verbose": 0}  # a last batch of one example
    kerass = model_of()
    expected = kerass.fit(x, x.mean(axis=tuple(range(1, x.ndim))), **options).history
    with own_strategy().scope():
        ours = model_of()
    found = fit(ours, x, x.mean(axis=tuple(range(1, x.ndim))), **options).history
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-4)
    for mine, its in zip(ours.get_weights(), kerass.get_weights(), strict=True):
        assert mine == pytest.approx(its, rel=1e-4, abs=1e-5)


@pytest.mark.skipif(not HAS_SEVERAL, reason="one device divides a loss once")
@pytest.mark.parametrize("kind", [again(keras.Model), OwnStep])
def test_half_precision_has_room_beside_a_synchronized_layer(kind):
    count = 512  # of which the parts would be more than half precision has room for, times the scale

    def model_of():
        keras.utils.set_random_seed(1)
        number = keras.Input((4,), dtype="float16")
        hidden = keras.layers.BatchNormalization(synchronized=True, dtype="mixed_float16")(number)
        model = kind(number, keras.layers.Dense(2, dtype="mixed_float16")(hidden))
        scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=2.0**14)
        model.compile(scaled, "mse")
        return model

    x, y = (np.resize(part, (count, part.shape[1])).astype("float16") for part in (X, Y))
    kerass = model_of()
    kerass.fit(x, y, batch_size=count, epochs=3, shuffle=False, verbose=0)
    with own_strategy().scope():
        ours = model_of()
    fit(ours, x, y, batch_size=count, epochs=3, shuffle=False, verbose=0)
    steps = [int(each.optimizer.inner_optimizer.iterations.numpy()) for each in (ours, kerass)]
    assert steps == [3, 3]
    for mine, its in zip(ours.get_weights(), kerass.get_weights(), strict=True):
        assert mine == pytest.approx(its, rel=1e-2, abs=1e-3)
