"""A batch whose tensors have other numbers of rows is refused where replicas would get parts of it."""

from typing import Any, NamedTuple

import numpy as np
import pytest

from tfdist.errors import DataError

tf = pytest.importorskip("tensorflow")

from several_devices import HAS_SEVERAL, own_strategy, run_on_several  # noqa: E402  # after the check that TensorFlow is there
from tfdist.training.data.check_one_row_per_example import with_equal_rows  # noqa: E402
from tfdist.training.evaluate import evaluate  # noqa: E402
from tfdist.training.fit import fit  # noqa: E402
from tfdist.training.predict import predict  # noqa: E402
from tfdist.training.train_and_test_on_batch import evaluate_batch, fit_batch  # noqa: E402

keras = tf.keras
X = np.random.default_rng(1).normal(size=(9, 4)).astype("float32")
FACTORS = np.array([[2.0, 1.0, 1.0, 3.0]], "float32")


@pytest.mark.skipif(HAS_SEVERAL, reason="this is what it starts")
@pytest.mark.usefixtures("forking")
def test_all_of_this_holds_on_several_devices():
    run_on_several(__file__)


class Scaled(keras.Model):
    """A model one of whose inputs is the same for all examples."""

    def __init__(self):
        super().__init__()
        self.layer = keras.layers.Dense(1, kernel_initializer="ones")

    def call(self, inputs):
        return self.layer(inputs["x"] * inputs["factors"])


def batches(factors):
    data = tf.data.Dataset.from_tensor_slices((X, X[:, :1])).batch(4)
    return data.map(lambda x, y: ({"factors": factors, "x": x}, y))


def generated():
    for start in range(0, 9, 4):
        yield {"factors": FACTORS, "x": X[start : start + 4]}, X[start : start + 4, :1]


def zipped():
    both = tf.data.Dataset.zip((data_of(X).batch(4), data_of(X[:1] + 1).repeat(3).batch(1)))
    targets = data_of(X[:, :1]).batch(4)
    return tf.data.Dataset.zip((both.map(lambda x, factors: {"factors": factors, "x": x}), targets))


def data_of(array):
    return tf.data.Dataset.from_tensor_slices(array)


KINDS = {
    "rows": lambda: batches(FACTORS),
    "number": lambda: batches(2.0),
    "generator": generated,
    "zip": zipped,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("call", [fit, evaluate, predict])
def test_what_is_the_same_for_all_examples(call, kind):
    with own_strategy().scope():
        model = Scaled()
        model.compile("sgd", "mse")
    options = {"verbose": 0, **({"shuffle": False} if call is fit else {})}
    if HAS_SEVERAL:
        found = "a number without rows" if kind == "number" else "tensors of 1 and 4 rows"
        with pytest.raises(DataError, match=f"expected a row for each example .* received {found}"):
            call(model, KINDS[kind](), **options)
    elif kind in ("rows", "zip") or (kind == "number" and call is predict):  # Keras cannot train on a number
        alone = Scaled()
        alone.compile("sgd", "mse")
        expected = getattr(alone, call.__name__)(KINDS[kind](), **options)
        found = call(model, KINDS[kind](), **options)
        if call is fit:
            expected, found = expected.history["loss"], found.history["loss"]
        np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize(
    "batch",
    [
        (X, X[:, 0]),
        {"x": X, "words": tf.ragged.constant([[1], [2, 3]] * 4 + [[4]])},
        (tf.sparse.from_dense(X), X),
    ],
)
def test_takes_batches_with_as_many_rows_as_examples(batch):
    data = tf.data.Dataset.from_tensor_slices(batch).batch(4)
    assert with_equal_rows(data) is data
    known = with_equal_rows(tf.data.Dataset.from_tensors((batch, X)).concatenate(_unknown(batch)))
    assert len(list(known)) == 2


def test_takes_batches_that_only_their_order_has_changed():
    data = tf.data.Dataset.from_tensor_slices((X, X[:, 0])).batch(4).shuffle(2, seed=1)
    data = data.repeat(2).skip(1).take(2).cache().shard(1, 0).prefetch(1)
    assert with_equal_rows(data) is data
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"other numbers of rows:\] \[2 4\]"):
        list(with_equal_rows(data.map(lambda x, y: (x[::2], y))))


def _unknown(batch):
    return tf.data.Dataset.from_tensor_slices((batch, X)).batch(9)


@pytest.mark.skipif(not HAS_SEVERAL or keras.__version__ < "3", reason="Keras's own, which checks it too")
@pytest.mark.parametrize("call", [fit_batch, evaluate_batch])
def test_one_batch(call):
    with own_strategy().scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    with pytest.raises(DataError, match=r"received tensors of 4 and 9 rows\."):
        call(model, X, X[:4, :1])


class Labelled(keras.Model):
    """A model that trains on labelled and other examples at once, as semi-supervised learning does."""

    def __init__(self):
        super().__init__()
        self.hidden = keras.layers.Dense(3, "tanh")
        self.out = keras.layers.Dense(1)
        self.seen = keras.metrics.Mean(name="seen")

    def call(self, inputs):
        return self.out(self.hidden(inputs))

    def train_step(self, data):
        others, (x, y) = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.hidden(others))) + self.compute_loss(
                y=y, y_pred=self(x, training=True)
            )
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        self.seen.update_state(loss)
        return {"seen": self.seen.result()}


def of_several_sizes(count):
    others = data_of(X[:count] - 1).batch(4)
    both = (others, data_of((X, X[:, :1])).batch(2))
    return tf.data.Dataset.zip(both).prefetch(1)


def trained(fit_it, count):
    keras.utils.set_random_seed(1)
    model = Labelled()
    model.compile("sgd", "mse")
    return [
        *fit_it(model, of_several_sizes(count)).history["seen"],
        *(np.sum(w) for w in model.get_weights()),
    ]


@pytest.mark.skipif(
    keras.__version__ < "3", reason="a custom step of Keras 2 is run as Keras's own fit runs it"
)
def test_each_replica_gets_its_part_of_zipped_batches_of_several_sizes():
    with own_strategy().scope():
        found = trained(lambda model, data: fit(model, data, epochs=2, shuffle=False, verbose=0), 8)
    alone = trained(lambda model, data: model.fit(data, epochs=2, shuffle=False, verbose=0), 8)
    np.testing.assert_allclose(found, alone, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(not HAS_SEVERAL or keras.__version__ < "3", reason="one replica gets whole batches")
def test_names_the_sizes_of_zipped_batches_that_do_not_split():
    received = r"zipped batches of several sizes, .* received batches of 1 and 2 examples\. Use batch"
    with own_strategy().scope(), pytest.raises(DataError, match=received):
        trained(lambda model, data: fit(model, data, shuffle=False, verbose=0), 5)


@pytest.mark.skipif(keras.__version__ < "3", reason="Keras 2's own splits a batch")
def test_a_model_of_a_strategy_predicts_each_example_of_a_batch_once():
    with own_strategy().scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    np.testing.assert_allclose(model.predict_on_batch(X), model(X), atol=1e-5)


def test_names_rows_that_are_known_before():
    data = tf.data.Dataset.from_tensors((X, X[:4]))
    with pytest.raises(DataError, match=r"received tensors of 4 and 9 rows\. Repeat what is the same"):
        with_equal_rows(data)


@pytest.mark.parametrize("other", [7, np.array(["a"])])
def test_predicting_looks_at_the_inputs_alone(other):
    data = tf.data.Dataset.from_tensor_slices(X).batch(4).map(lambda x: (x, tf.constant(other)))
    with own_strategy().scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    np.testing.assert_allclose(predict(model, data, verbose=0), model(X), atol=1e-5)


class Named(NamedTuple):
    x: Any
    y: Any


def test_a_batch_in_a_named_tuple_stays_one():
    data = (
        tf.data.Dataset.from_tensor_slices((X, X))
        .batch(4)
        .map(lambda x, y: Named(x, tf.ensure_shape(y, [4, 4])))
    )
    [first, *_] = with_equal_rows(data.take(2))
    assert isinstance(first, Named)
