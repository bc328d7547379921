"""A custom step that computes with the results of metrics has those of all examples, on two devices too."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from several_devices import HAS_SEVERAL, own_strategy, run_on_several  # noqa: E402  # after the check that TensorFlow is there
from tfdist.errors import ConfigError  # noqa: E402
from tfdist.training.fit import fit  # noqa: E402

keras = tf.keras
pytestmark = [
    pytest.mark.skipif(
        keras.__version__ < "3", reason="a custom step of Keras 2 is run as Keras's own fit runs it"
    ),
    pytest.mark.usefixtures("in_float64"),
]
RNG = np.random.default_rng(1)
X, LABELS = (
    RNG.normal(size=(13, 4)),
    RNG.integers(0, 3, 13),
)  # the last batch of 4 leaves a replica without any


@pytest.fixture(scope="module")
def strategy():
    return own_strategy()


@pytest.mark.skipif(HAS_SEVERAL, reason="this is what it starts")
@pytest.mark.usefixtures("forking")
def test_all_of_this_holds_on_several_devices():
    run_on_several(__file__)


class Largest(keras.metrics.Metric):
    """The largest loss, which reads its own result to count."""

    def __init__(self, **options):
        super().__init__(**options)
        self.most = self.add_weight(name="most", initializer="zeros")

    def update_state(self, values, sample_weight=None):
        del sample_weight
        self.most.assign(tf.maximum(self.result(), tf.reduce_max(values)))

    def result(self):
        return self.most

    def merge_state(self, metrics):
        for metric in metrics:
            self.most.assign(tf.maximum(tf.convert_to_tensor(self.most), tf.convert_to_tensor(metric.most)))


class Computes(keras.Model):
    """A model whose steps compute with the results of its metrics."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)
        self.mean, self.largest = keras.metrics.Mean(name="mean"), Largest(name="largest")
        self.right = keras.metrics.SparseCategoricalAccuracy(name="right")
        self.pace = self.add_weight(shape=(), initializer="zeros", trainable=False, name="pace")

    def call(self, inputs):
        return self.dense(inputs)

    def losses_of(self, data):
        x, labels = data
        logits = self(x)
        losses = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
        self.right.update_state(labels, logits)
        self.largest.update_state(losses)
        return losses

    def logs(self, loss):
        self.mean.update_state(loss)
        mean, right = self.mean.result(), self.right.result()
        return {
            "mean": mean,
            "right": right,
            "largest": self.largest.result(),
            "perplexity": tf.exp(mean),
            "total": self.mean.result() + right,
            "above": self.largest.result() - mean,
        }

    def train_step(self, data):
        with tf.GradientTape() as tape:
            losses = self.losses_of(data)
            loss = tf.reduce_mean(losses) * (1.5 - self.right.result())
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        self.pace.assign(0.5 * self.pace + self.right.result())
        return self.logs(loss)

    def test_step(self, data):
        return self.logs(tf.reduce_mean(self.losses_of(data)))


class InABranch(Computes):
    """A model that reads a result in a branch of its graph."""

    def logs(self, loss):
        mean = tf.cond(loss > 0.0, lambda: self.right.result() + 1.0, lambda: tf.zeros([], tf.float64))
        return {"mean": mean}


def both(strategy, kind, run_eagerly=False):
    """Return what Keras's own fit logs in one process, and what tfdist's does under the strategy."""
    data = tf.data.Dataset.from_tensor_slices((X, LABELS)).batch(4)

    def trained(fitted):
        keras.utils.set_random_seed(1)
        model = kind()
        model(X[:1])
        model.compile(keras.optimizers.SGD(0.5), run_eagerly=run_eagerly)
        logs = fitted(model, data, epochs=2, shuffle=False, verbose=0, validation_data=data).history
        return logs, [*model.get_weights(), model.pace.numpy()]

    expected = trained(keras.Model.fit)
    with strategy.scope():
        found = trained(fit)
    return expected, found


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_results_are_those_of_all_examples(strategy, run_eagerly):
    (expected, weights), (found, own_weights) = both(strategy, Computes, run_eagerly)
    assert set(found) == set(expected)
    for name, values in expected.items():
        assert found[name] == pytest.approx(values, rel=1e-6), name  # Keras adds up its logs in float32
    for mine, its in zip(own_weights, weights, strict=True):
        assert mine == pytest.approx(its, rel=1e-9)


@pytest.mark.skipif(not HAS_SEVERAL, reason="one device has all examples")
def test_a_result_in_a_branch_is_named(strategy, caplog):
    both(strategy, InABranch)
    assert "computes with the result of metric right within a branch" in caplog.text


class Assigns(Computes):
    """A model whose step writes to variables of TensorFlow."""

    def __init__(self):
        super().__init__()
        self.seen, self.average = tf.Variable(0), tf.Variable(np.zeros(4), trainable=False)
        self.total = tf.Variable(np.float64(0.0), trainable=False)
        self.steps = tf.Variable(0, trainable=False)
        self.queue = tf.Variable(np.zeros(6, int), name="queue", trainable=False)
        added = {"trainable": False, "aggregation": tf.VariableAggregation.SUM}
        self.added = tf.Variable(0, **added)
        self.added_on_read = tf.Variable(0, synchronization=tf.VariableSynchronization.ON_READ, **added)

    def train_step(self, data):
        x, labels = data
        numbers = tf.cast(labels, self.queue.dtype)
        self.queue.assign(tf.concat([numbers, self.queue[: -tf.shape(numbers)[0]]], axis=0))
        is_there = tf.cast(tf.shape(x)[0] > 0, tf.int32)  # of an example in the place of none too
        has_own = tf.reduce_any(x != 0.0)
        self.steps.assign_add(is_there)
        for variable in (self.added, self.added_on_read):
            variable.assign_add(tf.where(has_own, tf.shape(x)[0], 0))
        self.seen.assign_add(tf.shape(x)[0])
        self.total.assign_add(tf.reduce_sum(x))
        self.average.assign(0.9 * self.average + 0.1 * tf.reduce_mean(x, axis=0))
        return super().train_step(data)


def test_variables_of_tensorflow_are_those_of_one_process(strategy, caplog):
    data = tf.data.Dataset.from_tensor_slices((X, LABELS)).batch(4)

    def trained(fitted):
        keras.utils.set_random_seed(1)
        model = Assigns()
        model(X[:1])
        model.compile(keras.optimizers.SGD(0.5))
        fitted(model, data, epochs=2, shuffle=False, verbose=0)
        kept = model.seen, model.total, model.average, model.steps, model.added, model.added_on_read
        return [each.numpy() for each in kept]

    expected = trained(keras.Model.fit)
    with strategy.scope():
        found = trained(fit)
    for mine, its in zip(found, expected, strict=True):
        assert mine == pytest.approx(its, rel=1e-9)
    named = [line for line in caplog.messages if line.startswith("state ")]
    assert [line.split()[1] for line in named] == [
        "queue:0"
    ] * HAS_SEVERAL  # its examples are those of a part


class Regularized(Computes):
    """A model whose loss has a result of a metric in it, and the number of rows of a part of a weight."""

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.losses_of(data))
            self.mean.update_state(loss)
            kernel = tf.convert_to_tensor(self.dense.kernel)
            positive = tf.boolean_mask(kernel, kernel[:, 0] > 0.0)
            penalty = tf.cast(tf.shape(positive)[0], tf.float64) * tf.reduce_mean(kernel**2)
            loss += 0.5 * self.mean.result() + penalty
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"loss": loss, "mean": self.mean.result()}


def test_a_result_in_a_loss_has_no_gradient_and_rows_of_a_weight_are_no_examples(strategy):
    (expected, weights), (found, own_weights) = both(strategy, Regularized)
    for name, values in expected.items():
        assert found[name] == pytest.approx(values, rel=1e-6), name
    for mine, its in zip(own_weights, weights, strict=True):
        assert mine == pytest.approx(its, rel=1e-7)


class LogsOfExamples(Computes):
    def train_step(self, data):
        return {"loss": self.losses_of(data)}


def test_a_log_of_each_example_is_a_mistake_of_one_line(strategy):
    with strategy.scope():
        model = LogsOfExamples()
        model.compile("sgd")
    with pytest.raises(ConfigError, match=r"^train_step of model .* unknown shape \(None,\) .* its mean$"):
        fit(model, X, LABELS, batch_size=4, verbose=0)
