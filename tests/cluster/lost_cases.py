"""Work without an end, so that a task can be taken away in the middle of it."""

import time
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfdist.cluster.config import ClusterConfig
from tfdist.coordination.calls_between_tasks import token
from tfdist.coordination.heartbeat_watch import Watcher
from tfdist.training.evaluate import evaluate
from tfdist.training.fit import fit
from tfdist.training.predict import predict
from tfdist.transport.worker_and_ps_ends import named, written_addresses

keras = tf.keras


def endless() -> tf.data.Dataset:
    ones = tf.ones((4, 1))
    return tf.data.Dataset.from_tensors((ones, ones)).repeat()


def linear(strategy: tf.distribute.Strategy) -> Any:
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.0), "mse")
    return model


class Begun(keras.callbacks.Callback):
    """Write the file `begun` after ten steps, when the work is under way.

    If a task is to be lost in it, wait there for the file `lost`, or all might be done before.
    """

    def __init__(self, folder: Path, *, until_lost: bool = False) -> None:
        super().__init__()
        self.folder, self.until_lost = folder, until_lost

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch >= 9:
            (self.folder / "begun").touch()
            while self.until_lost and not (self.folder / "lost").exists():
                time.sleep(0.05)

    on_test_batch_end = on_train_batch_end


def fitting(
    strategy: tf.distribute.Strategy, folder: Path, callback: keras.callbacks.Callback | None = None
) -> dict[str, Any]:
    options = {"steps_per_epoch": 100, "epochs": 10**6, "verbose": 0}
    fit(linear(strategy), endless(), strategy=strategy, callbacks=[callback or Begun(folder)], **options)
    return {}


class StopWhen(keras.callbacks.Callback):
    """Stop the training once a file is there."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.model.stop_training = self.path.exists()


def evaluating(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    model = linear(strategy)
    evaluate(model, endless(), strategy=strategy, steps=2, verbose=0, return_dict=True)
    (folder / "begun").touch()
    return evaluate(model, endless(), strategy=strategy, steps=10**9, verbose=0, return_dict=True)


def predicting(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    model = linear(strategy)
    predict(model, endless().take(2), strategy=strategy)
    (folder / "begun").touch()
    predict(model, endless().take(10**9), strategy=strategy)
    return {}


class Watch(keras.callbacks.Callback):
    """Follow a worker that goes and comes back by what it adds to an epoch's logs; stop when it has."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        took_part = logs["mae"] > 0
        if (self.folder / "without").exists():
            self.model.stop_training = took_part
        elif (self.folder / "killed").exists() and not took_part:
            (self.folder / "without").touch()


def surviving(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """Train while worker 1 goes and comes back; the examples of worker 0 have an error of 0, its own of 1."""

    def make(context: tf.distribute.InputContext) -> tf.data.Dataset:
        ones = tf.ones((4, 1))
        return tf.data.Dataset.from_tensors((ones, ones * float(context.input_pipeline_id))).repeat()

    with strategy.scope():
        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        model = keras.Sequential([keras.Input((1,)), layer])
        model.compile(keras.optimizers.SGD(0.0), "mse", metrics=["mae"])
    callbacks = [Begun(folder), Watch(folder)]
    history = fit(
        model, make, strategy=strategy, steps_per_epoch=50, epochs=10**6, callbacks=callbacks, verbose=0
    )
    return {"epochs": len(history.epoch), "iterations": int(model.optimizer.iterations.numpy())}


class Slow(keras.layers.Layer):
    """Pass its inputs on, after some work."""

    def __init__(self, amount: int = 50) -> None:
        super().__init__()
        self.amount = amount

    def build(self, shape: Any) -> None:
        self.matrix = self.add_weight(shape=(512, 512), initializer="orthogonal", trainable=False)

    def call(self, inputs: Any) -> Any:
        power = tf.ones((512, 512)) * inputs[0, 0]
        for _ in range(self.amount):
            power = tf.tanh(power @ tf.convert_to_tensor(self.matrix))
        return inputs + 0.0 * power[0, 0]


class Stepping(keras.Model):
    """A model whose weight grows by exactly 1 in each step at a learning rate of 1."""

    def __init__(self) -> None:
        super().__init__()
        self.slow, self.dense = Slow(), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")

    def call(self, inputs: Any) -> Any:
        return self.dense(self.slow(inputs))


class CutOff(Stepping):
    """The same, which cuts its worker's connection to the parameter server in a step with inputs above 1.

    Between two steps the worker would only connect again.
    """

    def call(self, inputs: Any) -> Any:
        def cut() -> Any:
            nowhere = tf.constant(written_addresses({0: ("127.0.0.1", 1)}))
            [problem] = tf.raw_ops.PyFunc(input=[nowhere], token=token(named("connect")), Tout=[tf.string])
            return problem

        problem = tf.cond(inputs[0, 0] > 1.0, cut, lambda: tf.constant(""))
        with tf.control_dependencies([problem]):
            return super().call(tf.minimum(inputs, 1.0))


def until_told(
    strategy: tf.distribute.Strategy, folder: Path, make_model: Any = Stepping, data: Any = None
) -> dict[str, Any]:
    """Train without a pause until the file `enough` is there."""
    with strategy.scope():
        model = make_model()
        model.compile(keras.optimizers.SGD(1.0), lambda y, y_pred: -tf.reduce_mean(y_pred))
    callbacks = [Begun(folder), StopWhen(folder / "enough")]
    options = {"steps_per_epoch": 10**6, "verbose": 0}
    fit(model, data or endless(), strategy=strategy, callbacks=callbacks, **options)
    [weight] = model.dense.get_weights()
    return {"weight": float(weight[0, 0]), "iterations": int(model.optimizer.iterations.numpy())}


def cut_off(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """Do so although the connection between worker 1 and the parameter server breaks in its 21st step."""

    def make(context: tf.distribute.InputContext) -> tf.data.Dataset:
        last = endless().map(lambda x, y: (2.0 * x, y)) if context.input_pipeline_id else endless()
        return endless().take(20).concatenate(last)

    return until_told(strategy, folder, CutOff, make)


class OwnStepping(Stepping):
    """The same with a train_step of its own."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x=x, y=y, y_pred=self(x, training=True))
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"loss": loss}


def _counted(strategy: tf.distribute.Strategy, folder: Path, model_class: Any, data: Any) -> dict[str, Any]:
    with strategy.scope():
        model = model_class()
        model.compile(
            keras.optimizers.SGD(1.0), lambda y, y_pred: -tf.reduce_mean(y_pred), steps_per_execution=20
        )
    options = {
        "steps_per_epoch": 60,
        "epochs": 2,
        "verbose": 0,
        "callbacks": [Begun(folder, until_lost=True)],
    }
    fit(model, data, strategy=strategy, **options)
    [weight] = model.dense.get_weights()
    return {"weight": float(weight[0, 0]), "iterations": int(model.optimizer.iterations.numpy())}


def counted(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """Count the steps that the weight and the optimizer have got."""
    return _counted(strategy, folder, Stepping, endless())


def counted_without_the_silent(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """Count them while a worker is silent, as the chief of a script does that begins with `tfdist.start`."""
    cluster = ClusterConfig.from_tf_config()
    with Watcher(cluster, heartbeat_timeout=16.0, spared=["worker"]):
        return counted(strategy, folder)


def counted_by_own_step(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    return _counted(strategy, folder, OwnStepping, endless())


def counted_of_chief(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """Count them with data that the chief reads."""

    def batches() -> Any:
        while True:
            yield tf.ones((4, 1)), tf.ones((4, 1))

    spec = tf.TensorSpec((4, 1))
    data = tf.data.Dataset.from_generator(batches, output_signature=(spec, spec))
    return _counted(strategy, folder, Stepping, data)


class Counting(keras.Model):
    """A model that counts in its weights how often it has seen each of so many examples."""

    def __init__(self, examples: int) -> None:
        super().__init__()
        self.examples, self.slow = examples, Slow(10)
        self.dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")

    def call(self, numbers: Any) -> Any:
        rows = tf.one_hot(tf.cast(numbers[:, 0], tf.int32), self.examples)
        return self.dense(rows) + 0.0 * self.slow(tf.ones((1, 1)))

    def times_seen(self, batch_size: int) -> list[float]:
        return [float(each) * batch_size for each in self.dense.get_weights()[0][:, 0]]


def _counting(strategy: tf.distribute.Strategy) -> tuple[Any, tf.data.Dataset]:
    numbers = tf.range(400.0)[:, tf.newaxis]
    data = tf.data.Dataset.from_tensor_slices((numbers, numbers)).batch(4)
    with strategy.scope():
        model = Counting(400)
        metrics = [keras.metrics.MeanMetricWrapper(lambda y, _: y, name="mean")]
        optimizer = keras.optimizers.SGD(1.0)
        model.compile(optimizer, lambda _, seen: -seen, metrics=metrics, steps_per_execution=3)
    return model, data


def every_example_once(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """Train two epochs on data that end, during which a worker is lost."""
    model, data = _counting(strategy)
    callbacks = [Begun(folder, until_lost=True)]
    history = fit(model, data, strategy=strategy, epochs=2, verbose=0, callbacks=callbacks)
    return {
        "seen": sorted(set(model.times_seen(4))),
        "steps": history.params["steps"],
        "iterations": int(model.optimizer.iterations.numpy()),
        **_tested(model, data, strategy),
    }


def every_example_tested_once(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """Evaluate, during which a worker is lost."""
    model, data = _counting(strategy)
    return _tested(model, data, strategy, callbacks=[Begun(folder, until_lost=True)])


def _tested(model: Any, data: Any, strategy: tf.distribute.Strategy, **options: Any) -> dict[str, Any]:
    results = evaluate(model, data, strategy=strategy, verbose=0, return_dict=True, **options)
    return {"mean": results["mean"], "predicted": predict(model, data, strategy=strategy).shape[0]}


def whole_epochs(strategy: tf.distribute.Strategy, folder: Path) -> int:
    """Train three epochs, each of which ends where the data end; return the number of steps."""
    model = linear(strategy)
    fit(model, endless().take(20), strategy=strategy, steps_per_epoch=20, epochs=3, verbose=0)
    return int(model.optimizer.iterations.numpy())


def given_up_before(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """Train where the chief has given up each execution that it sends, as if it took the workers for lost."""
    from unittest import mock

    from tfdist.training.parameter_servers.applied_steps import AppliedSteps

    new_number = AppliedSteps.new_number

    def given_up(applied: AppliedSteps) -> int:
        number = new_number(applied)
        applied.give_up(number)
        return number

    model, error = linear(strategy), ""
    with mock.patch.object(AppliedSteps, "new_number", given_up):
        try:
            fit(model, endless(), strategy=strategy, steps_per_epoch=20, verbose=0)
        except tf.errors.InvalidArgumentError as refused:
            error = str(refused)
    return {"error": error, "iterations": int(model.optimizer.iterations.numpy())}


def silenced(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """Train on while a worker waits for data that never come, and neither answers nor fails."""
    import os

    from tfdist.training.runners.pending_executions import ScheduledExecutions

    ScheduledExecutions.seconds_to_come_back = 10.0
    os.mkfifo(folder / "pipe")  # nobody writes to it

    def make(context: tf.distribute.InputContext) -> tf.data.Dataset:
        if not context.input_pipeline_id:
            return endless()
        never = tf.data.TextLineDataset(str(folder / "pipe")).map(
            lambda _: (tf.ones((4, 1)), tf.ones((4, 1)))
        )
        return endless().take(5).concatenate(never)

    model = linear(strategy)
    history = fit(model, make, strategy=strategy, steps_per_epoch=50, epochs=4, verbose=0)
    return {"epochs": len(history.epoch), "iterations": int(model.optimizer.iterations.numpy())}


def half_hanging(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """Wait for somebody who does something else: what a hang of several processes is."""
    index = strategy.cluster_resolver.task_id
    (folder / f"begun-{index}").touch()
    if index == 0:
        return {"sum": float(strategy.reduce("SUM", tf.constant(1.0), axis=None))}
    while True:
        do_something_else()


def do_something_else() -> None:
    time.sleep(600)
