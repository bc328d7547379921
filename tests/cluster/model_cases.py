"""Models as people write them, and data in the order that they are found in."""

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from cases import compute_in

from tfdist.errors import ConfigError, DataError
from tfdist.training.evaluate import evaluate
from tfdist.training.fit import fit
from tfdist.training.keras.optimizers.lazy_adam import LazyAdam
from tfdist.training.predict import predict

keras = tf.keras
EXAMPLES, BATCH = 61, 12  # the last of the 6 batches has one example: all replicas but one have no part of it
CATEGORIES = 30


class Subclassed(keras.Model):
    """Two inputs and two outputs by name, with what a real model has in between."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = keras.layers.Embedding(CATEGORIES, 4)
        self.hidden = keras.layers.Dense(8, activation="tanh")
        self.normal = keras.layers.BatchNormalization(momentum=0.5, **_synchronized())
        self.mean, self.sign = keras.layers.Dense(1), keras.layers.Dense(1, activation="sigmoid")

    def call(self, inputs: Any, training: bool = False) -> Any:
        words = self.embedding(inputs["word"])
        joined = tf.concat([inputs["number"], tf.reshape(words, (-1, 8))], axis=1)
        hidden = self.normal(self.hidden(joined), training=training)
        return {"mean": self.mean(hidden), "sign": self.sign(hidden)}


def _synchronized() -> dict[str, bool]:
    """Return the option that normalises by the whole batch's moments, as in one process, if Keras has it."""
    return {"synchronized": True} if keras.__version__ >= "3" else {}


def dataset() -> tf.data.Dataset:
    rng = np.random.default_rng(8)
    x = {"number": rng.normal(size=(EXAMPLES, 5)), "word": rng.integers(0, CATEGORIES, size=(EXAMPLES, 2))}
    y = {"mean": np.exp(x["number"][:, :1]), "sign": (x["number"][:, 1:2] > 0).astype("float64")}
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)


def _compiled() -> Any:
    keras.utils.set_random_seed(4)
    model = Subclassed()
    losses = {"mean": "mse", "sign": "binary_crossentropy"}
    model.compile(keras.optimizers.Adam(0.01), losses, metrics={"mean": ["mae"], "sign": ["accuracy"]})
    return model


def trained(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """Train, evaluate and predict."""
    compute_in("float64")
    try:
        with strategy.scope():
            model = _compiled()
        history = fit(model, dataset(), strategy=strategy, epochs=2, verbose=0)
        return {
            "is_synchronized": bool(_synchronized()),
            "loss": history.history["loss"],
            "weights": [each.tolist() for each in model.get_weights()],
            "evaluated": evaluate(model, dataset(), strategy=strategy, verbose=0, return_dict=True),
            "predicted": {
                name: value.tolist() for name, value in predict(model, dataset(), strategy=strategy).items()
            },
        }
    finally:
        compute_in("float32")


def keras_itself(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """Keras's own fit and predict in one process."""
    del strategy, folder
    compute_in("float64")
    model = _compiled()
    history = model.fit(dataset(), epochs=2, shuffle=False, verbose=0)
    predicted = model.predict(dataset(), verbose=0)
    x, y = next(iter(dataset().unbatch().batch(EXAMPLES)))
    error = np.abs(model(x, training=False)["mean"] - y["mean"])
    on_sequences = _sequence_model().fit(sequences(), epochs=2, shuffle=False, verbose=0)
    compute_in("float32")
    return {
        "loss": history.history["loss"],
        "on_sequences": on_sequences.history["loss"],
        "weights": [each.tolist() for each in model.get_weights()],
        "predicted": {name: value.tolist() for name, value in predicted.items()},
        "error": float(error.mean()),
    }


def sequences() -> tf.data.Dataset:
    rng = np.random.default_rng(9)
    words = rng.integers(0, CATEGORIES, size=(EXAMPLES, 20))
    return tf.data.Dataset.from_tensor_slices((words, np.sin(words[:, :1]))).batch(BATCH)


def _sequence_model() -> Any:
    """TensorFlow infers no static shape for the gradients of a dense layer over sequences."""
    keras.utils.set_random_seed(5)
    layers = keras.layers
    stack = [layers.Embedding(CATEGORIES, 64), layers.Dense(64, "tanh"), layers.GlobalAveragePooling1D()]
    model = keras.Sequential([keras.Input((20,), dtype="int32"), *stack, layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    return model


def on_sequences(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """Train on sequences."""
    compute_in("float64")
    try:
        with strategy.scope():
            model = _sequence_model()
        history = fit(model, sequences(), strategy=strategy, epochs=2, verbose=0)
        return {"loss": history.history["loss"], "steps": int(model.optimizer.iterations.numpy())}
    finally:
        compute_in("float32")


def recovered(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """Fit again after an epoch that failed."""
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x = np.ones((64, 4), "float32")
    x[5] = np.nan

    def checked(x: np.ndarray) -> tf.data.Dataset:
        data = tf.data.Dataset.from_tensor_slices((x, np.ones((64, 1), "float32"))).batch(8)
        return data.map(lambda x, y: (tf.debugging.check_numerics(x, "a bad example"), y))

    message = ""
    try:
        fit(model, checked(x), strategy=strategy, verbose=0)
    except tf.errors.InvalidArgumentError as error:
        message = str(error)
    history = fit(model, checked(np.ones_like(x)), strategy=strategy, epochs=2, verbose=0)
    return {"failed": "a bad example" in message, "losses": history.history["loss"]}


def shuffled(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """Count how often each example is seen in data that are shuffled anew in each epoch."""
    names = np.eye(50, dtype="float32")
    data = tf.data.Dataset.from_tensor_slices((names, names))
    with strategy.scope():
        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        model = keras.Sequential([keras.Input((50,)), layer])

        class Minus(keras.losses.Loss):
            def call(self, y_true: Any, y_pred: Any) -> Any:
                return -y_pred[:, 0]

        model.compile(keras.optimizers.SGD(1.0), Minus(reduction="sum"))
    tf.random.set_seed(None)
    refused = ""
    try:
        fit(model, data.shuffle(50).batch(6), strategy=strategy, epochs=1, verbose=0)
    except DataError as error:
        refused = str(error)
    before = model.get_weights()[0][:, 0]
    fit(model, data.shuffle(50, seed=5).batch(6), strategy=strategy, epochs=3, verbose=0)
    return {"refused": refused, "seen": (model.get_weights()[0][:, 0] - before).tolist()}


def looked_up(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """Train and predict with layers that look words up in tables."""
    keras.utils.set_random_seed(6)
    layers = keras.layers
    words = np.array(["b a c", "a", "c c", "b"] * 6)[:, None]
    numbers = np.array([3, 5, 9, 7] * 6)[:, None]
    y = np.arange(24, dtype="float32")[:, None] / 24
    with strategy.scope():
        text = layers.TextVectorization(output_sequence_length=3)
        text.adapt(words[:4])
        inputs = [keras.Input((1,), dtype="string"), keras.Input((1,), dtype="int64")]
        parts = [text(inputs[0]), layers.IntegerLookup(vocabulary=[3, 5, 7])(inputs[1])]
        parts = [layers.Flatten()(layers.Embedding(10, 4)(each)) for each in parts]
        model = keras.Model(inputs, layers.Dense(1)(layers.Concatenate()(parts)))
        model.compile("sgd", "mse")
        values = keras.Sequential([keras.Input((1,)), layers.Activation("linear")])
        table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer([3, 5, 7], [0.0, 1.0, 2.0]), -1.0
        )
    data = tf.data.Dataset.from_tensor_slices(((words, numbers), y)).batch(6)

    def value(number: Any) -> Any:
        key = tf.cast(number, tf.int32)
        return tf.cond(number[0] < 9, lambda: table.lookup(key), lambda: tf.constant([-9.0]))

    history = fit(model, data, strategy=strategy, epochs=2, verbose=0)
    loss = evaluate(model, data, strategy=strategy, verbose=0, return_dict=True)["loss"]
    predicted = predict(model, data, strategy=strategy)
    return {
        "losses": history.history["loss"],
        "loss": loss,
        "of_predicted": float(((predicted - y) ** 2).mean()),
        "in_branches": predict(
            values, tf.data.Dataset.from_tensor_slices(numbers).map(value).batch(6), strategy=strategy
        ).tolist(),
    }


def summed(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """Add one to a variable on each replica, and to metrics, in each of 4 steps of a custom loop."""
    with strategy.scope():
        total = tf.Variable(0.0, aggregation=tf.VariableAggregation.SUM)
        mean, last = keras.metrics.Mean(), keras.metrics.Mean()

    def add() -> None:
        total.assign_add(tf.ones([]))
        mean.update_state(tf.constant([1.0, 3.0]))
        last.reset_state()
        last.update_state(tf.constant([5.0]))

    @tf.function(autograph=False)
    def step() -> None:
        strategy.run(add)

    for _ in range(4):
        step()
    counts = [float(metric.count.numpy()) for metric in (mean, last)]
    results = [float(metric.result()) for metric in (mean, last)]
    return {
        "total": float(total.numpy()),
        "replicas": strategy.num_replicas_in_sync,
        "counts": counts,
        "results": results,
    }


def by_rows(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """Train an embedding by the optimizers that update only the rows with a gradient."""
    if keras.__version__ < "3":
        return {}
    chance = np.random.default_rng(0)
    x, y = chance.integers(0, 20, (12, 5)).astype("int32"), chance.normal(size=(12, 1))  # rows come again
    found = {}
    compute_in("float64")
    for kind in (keras.optimizers.SGD, keras.optimizers.Adagrad, LazyAdam):
        keras.utils.set_random_seed(1)
        with strategy.scope():
            layers = [keras.layers.Embedding(70, 3), keras.layers.Flatten(), keras.layers.Dense(1)]
            model = keras.Sequential([keras.Input((5,), dtype="int32"), *layers])
            model.compile(kind(0.1), "mse")
        fit(model, x, y, batch_size=6, epochs=2, shuffle=False, strategy=strategy, verbose=0)
        found[kind.__name__] = [weights.tolist() for weights in model.get_weights()]
    found["sparse"] = _on_sparse_inputs(strategy)
    compute_in("float32")
    return found


def _on_sparse_inputs(strategy: tf.distribute.Strategy) -> list[Any]:
    """Train on sparse inputs by an optimizer that squares the gradient; return the weights."""
    chance = np.random.default_rng(1)
    x = np.where(chance.uniform(size=(13, 9)) < 0.4, 1.0, 0.0)
    inputs = keras.Input((9,), sparse=True)
    with strategy.scope():
        model = keras.Model(inputs, keras.layers.Dense(1, kernel_initializer="ones")(inputs))
        model.compile(keras.optimizers.Adam(0.1, global_clipnorm=0.5), "mse")
    data = tf.data.Dataset.from_tensor_slices((tf.sparse.from_dense(x), chance.normal(size=(13, 1))))
    fit(model, data.batch(6), epochs=2, strategy=strategy, verbose=0)
    return [weights.tolist() for weights in model.get_weights()]


def with_options(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """Options of compile that change how a step runs, and not what comes out of it."""
    found = {}
    x = np.random.default_rng(7).normal(size=(24, 3)).astype("float32")
    has_several = hasattr(keras.optimizers, "MultiOptimizer")
    for option in ("", "jit_compile", "run_eagerly", *(["several optimizers"] if has_several else [])):
        keras.utils.set_random_seed(7)
        with strategy.scope():
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
            if option == "several optimizers":
                choice = {".*kernel": keras.optimizers.SGD()}
                optimizers = keras.optimizers.OptimizerMap(keras.optimizers.SGD(), choice)
                model.compile(keras.optimizers.MultiOptimizer(optimizers), "mse")
            else:
                model.compile("sgd", "mse", **({option: True} if option else {}))
        history = fit(model, x, x[:, :1], batch_size=8, epochs=2, shuffle=False, verbose=0, strategy=strategy)
        found[option] = {"losses": history.history["loss"], "steps": int(model.optimizer.iterations)}
    return found


class _Counts(keras.layers.Layer):
    """Count the calls, also those that do not train, and multiply by the count."""

    def build(self, shape: Any) -> None:
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, inputs: Any) -> Any:
        self.calls.assign_add(1.0)
        return inputs * self.calls


class _KeepsMean(keras.layers.Layer):
    """Keep a moving mean of the inputs, also of those that do not train, and drop some of them."""

    def __init__(self) -> None:
        super().__init__(dtype="float64")
        self.dropout = keras.layers.Dropout(0.5, seed=4)

    def build(self, shape: Any) -> None:
        self.mean = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, inputs: Any) -> Any:
        self.mean.assign((self.mean + keras.ops.mean(inputs)) / 2)
        return self.dropout(inputs, training=True)


class _CountsByTensorFlow(_Counts):
    """Count in a variable that Keras does not know."""

    def build(self, shape: Any) -> None:
        self.calls = tf.Variable(0.0, trainable=False)


def written(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """Evaluate and predict with layers that write their variables, and train with those that write others."""
    if keras.__version__ < "3":  # it updates variables within its graph
        return {}
    x = np.ones((6, 1), "float32")
    data = tf.data.Dataset.from_tensor_slices((x, 0 * x)).batch(2)
    with strategy.scope():
        counts, outside = _Counts(), keras.Variable(0.0, trainable=False, name="outside")
        keeps = _KeepsMean()
        predicting = keras.Sequential([keras.Input((1,)), keeps])
        model = keras.Sequential([keras.Input((1,)), counts])
        model.compile("sgd", "mse")

        class Hides(keras.layers.Dense):
            def call(self, inputs: Any) -> Any:
                outside.assign_add(1.0)
                return super().call(inputs)

        hiding = keras.Sequential([keras.Input((1,)), Hides(1)])
        hiding.compile("sgd", "mse")
        raw = keras.Sequential([keras.Input((1,)), _CountsByTensorFlow(), keras.layers.Dense(1)])
        raw.compile("sgd", "mse")
    found: dict[str, Any] = {
        "losses": [evaluate(model, data, strategy=strategy, verbose=0) for _ in range(2)]
    }
    found["calls"] = float(counts.calls)
    numbers = np.arange(1.0, 8.0)[:, np.newaxis]
    batches = tf.data.Dataset.from_tensor_slices(numbers).batch(4)
    found["dropped"] = [
        np.flatnonzero(predict(predicting, batches, strategy=strategy, verbose=0) == 0).tolist()
        for _ in range(2)
    ]
    found["mean"] = float(keeps.mean)
    found["draws"] = int(keeps.dropout.seed_generator.state[1])
    for name, each in (("refused", hiding), ("of TensorFlow", raw)):
        try:
            fit(each, data, strategy=strategy, verbose=0)
        except ConfigError as error:
            found[name] = str(error)
    return found


def made(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """Make variables of which each worker has other values, quantize a model, and predict in all types."""
    del folder
    worker = strategy.cluster_resolver.task_id
    names = ("int8", "int16", "uint8", "uint32", "int64", "bfloat16", "float16", "complex64", "bool")
    found: dict[str, Any] = {}
    with strategy.scope():
        for name in names:
            variable = tf.Variable(tf.cast(tf.constant([1 - worker, 100 + worker, 3]), name))
            found[name] = str(variable.numpy().tolist())
    if keras.__version__ >= "3":
        keras.utils.set_random_seed(worker)
        with strategy.scope():
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        model.quantize("int8")
        found["outputs"] = predict(model, np.ones((2, 3), "float32"), strategy=strategy, verbose=0).tolist()
    with strategy.scope():
        inputs = keras.Input((3,))
        kinds = [keras.layers.Lambda(lambda x, name=name: tf.cast(x, name)) for name in names]
        model = keras.Model(inputs, [kind(inputs) for kind in kinds])
    x = np.float32([[0, 1, 2], [3, 4, 5], [6, 7, 8]])
    outputs = predict(model, x, batch_size=3, strategy=strategy, verbose=0)
    for name, output in zip(names, outputs, strict=True):
        assert output.dtype == tf.as_dtype(name).as_numpy_dtype
        np.testing.assert_array_equal(output, tf.cast(x, name).numpy())
    return found
