"""What the tasks of the tests' clusters do: each case trains under a strategy and says what came out."""

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.strategies.current_cluster_and_strategy import is_chief_of
from tfdist.training.barrier import barrier
from tfdist.training.evaluate import evaluate
from tfdist.training.fit import fit
from tfdist.training.predict import predict

keras = tf.keras
EXAMPLES, BATCH = 101, 12  # the last of the 9 batches has 5 examples, and the replicas' parts differ


def points(dtype: str = "float32") -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(EXAMPLES, 5)).astype(dtype)
    return x, np.exp(x[:, :1])


def batches(*arrays: Any) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(arrays).batch(BATCH)


def local_copies(strategy: tf.distribute.Strategy, variable: Any) -> list[Any]:
    value = getattr(variable, "value", variable)
    value = value() if callable(value) else value
    return [each.numpy().tolist() for each in strategy.experimental_local_results(value)]


def compute_in(dtype: str) -> None:
    keras.backend.set_floatx(dtype)
    keras.mixed_precision.set_global_policy(dtype)


class EveryStep(keras.callbacks.Callback):
    """Record the loss and the weights after each step."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []
        self.weights: list[Any] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.losses.append(float(logs["loss"]))
        self.weights.append([each.tolist() for each in self.model.get_weights()])


def smoke(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """A model with what goes wrong most: moving averages, random numbers, slots, a last batch that is short."""
    keras.utils.set_random_seed(1)
    data = batches(*points())
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((5,)),
                keras.layers.Dense(8, activation="relu"),
                keras.layers.BatchNormalization(),
                keras.layers.Dropout(0.1),
                keras.layers.Dense(1),
            ]
        )
        model.compile(keras.optimizers.Adam(0.02), "mse", metrics=["mae"], steps_per_execution=3)
    history = fit(model, data, strategy=strategy, epochs=2, validation_data=data, verbose=0)
    found = predict(model, data, strategy=strategy)
    x, y = points()
    moving = model.layers[1].moving_mean
    return {
        "history": history.history,
        "errors": {"loss": float(np.mean((found - y) ** 2)), "mae": float(np.mean(np.abs(found - y)))},
        "iterations": int(model.optimizer.iterations.numpy()),
        "moving_mean": local_copies(strategy, moving),
        "weights": [each.tolist() for each in model.get_weights()],
        "predicted_as_called": bool(np.allclose(found, model(x, training=False).numpy(), atol=1e-5)),
    }


def counting(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """A weight that grows by exactly one for every example whose gradient arrives."""
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]
        )

        class Minus(keras.losses.Loss):
            def call(self, y_true: Any, y_pred: Any) -> Any:
                return -y_pred[:, 0]

        model.compile(keras.optimizers.SGD(1.0), Minus(reduction="sum"))
    ones = np.ones((EXAMPLES, 1), "float32")
    history = fit(model, batches(ones, ones), strategy=strategy, epochs=3, verbose=0)
    return {
        "weight": float(model.get_weights()[0][0, 0]),
        "iterations": int(model.optimizer.iterations.numpy()),
        "epochs": len(history.epoch),
    }


def from_function(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """Each pipeline makes its own part; the parts differ in size, so that some replicas end before others."""
    seen_sizes = []

    def make(context: tf.distribute.InputContext) -> tf.data.Dataset:
        part = np.ones((EXAMPLES, 1), "float32")[context.input_pipeline_id :: context.num_input_pipelines]
        if context.input_pipeline_id == 0:
            part = part[: len(part) // 2]
        seen_sizes.append(len(part))
        return tf.data.Dataset.from_tensor_slices((part, part)).batch(6)

    def with_conditions(context: tf.distribute.InputContext) -> tf.data.Dataset:
        """Ask tensors in an `if`, as TensorFlow's AutoGraph lets functions of data do."""

        def kept(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            if tf.reduce_sum(x) < 0.0:
                x = tf.zeros_like(x)
            return x, y

        data = make(context).map(kept)
        if data.cardinality() > 1000:
            data = data.take(1)
        return data

    numbers = tf.data.Dataset.range(EXAMPLES)

    def of_outer_data(context: tf.distribute.InputContext) -> tf.data.Dataset:
        """Return a part of a data set that exists already, as functions of a list of files do."""
        part = numbers.shard(context.num_input_pipelines, context.input_pipeline_id)
        return part.map(lambda _: (tf.ones([1]), tf.ones([1]))).batch(6)

    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((1,)),
                keras.layers.Dense(1, use_bias=False, kernel_initializer="ones"),
                keras.layers.BatchNormalization(),
            ]
        )
        model.compile(keras.optimizers.SGD(0.0), "mse", metrics=[_Examples()])
    history = fit(model, make, strategy=strategy, epochs=2, verbose=0)
    again = fit(model, with_conditions, strategy=strategy, verbose=0)
    of_outer = fit(model, of_outer_data, strategy=strategy, verbose=0)
    return {
        "examples": history.history["examples"] + again.history["examples"],
        "examples of outer data": of_outer.history["examples"],
        "moving": [each.tolist() for each in model.get_weights()],
    }


class _Examples(keras.metrics.Metric):
    def __init__(self, name: str = "examples", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        self.count = self.add_weight(name="count", shape=(), initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.count.assign_add(tf.cast(tf.shape(y_true)[0], self.count.dtype))

    def result(self) -> Any:
        return self.count + 0.0


def rich_model(keras: Any) -> Any:
    """Several inputs and outputs, a shared embedding, a penalty on weights and an added loss."""
    number, word = keras.Input((5,), name="number"), keras.Input((3,), dtype="int32", name="word")
    embedded = keras.layers.Flatten()(keras.layers.Embedding(50, 4)(word))
    both = keras.layers.Concatenate()(
        [keras.layers.Dense(6, "tanh", kernel_regularizer="l2")(number), embedded]
    )
    both = keras.layers.ActivityRegularization(l2=0.01)(both)
    return keras.Model(
        [number, word], [keras.layers.Dense(1, name="a")(both), keras.layers.Dense(2, name="b")(both)]
    )


def rich_data() -> tf.data.Dataset:
    x, y = points("float64")
    rng = np.random.default_rng(5)
    words = rng.integers(0, 50, size=(EXAMPLES, 3)).astype("int32")
    weights = rng.uniform(0.5, 2.0, size=EXAMPLES)
    return batches((x, words), (y, np.hstack([y, -y])), (weights, weights[::-1].copy()))


def compiled(model: Any, optimizer: str) -> Any:
    schedule = keras.optimizers.schedules.ExponentialDecay(0.05, 5, 0.9)
    made = {
        "sgd": lambda: keras.optimizers.SGD(schedule, momentum=0.9, nesterov=True),
        "adam": lambda: keras.optimizers.Adam(schedule, global_clipnorm=0.5),
        "clipped": lambda: keras.optimizers.SGD(
            0.05, clipnorm=0.1, weight_decay=0.01, use_ema=True, ema_momentum=0.5
        ),
        "legacy": lambda: keras.optimizers.legacy.Adam(schedule),  # of Keras 2
    }[optimizer]()
    model.compile(made, ["mse", "mae"], loss_weights=[1.0, 0.3], weighted_metrics=[["mae"], ["mse"]])
    return model


def _equivalent(strategy: Any, optimizer: str) -> dict[str, Any]:
    compute_in("float64")
    try:
        keras.utils.set_random_seed(3)
        steps = EveryStep()
        with strategy.scope():
            model = compiled(rich_model(keras), optimizer)
        history = fit(model, rich_data(), strategy=strategy, epochs=2, callbacks=[steps], verbose=0)
        found = _trained(model, steps, history)
        if optimizer == "sgd":  # the others evaluate as it does
            options = {"verbose": 0, "return_dict": True}
            found["evaluated"] = evaluate(model, rich_data(), strategy=strategy, **options)
        return found
    finally:
        compute_in("float32")


def _trained(model: Any, steps: EveryStep, history: Any) -> dict[str, Any]:
    """Return what training has left after each step, and in the end, when averages are the weights."""
    weights = [*steps.weights, [each.tolist() for each in model.get_weights()]]
    return {"losses": steps.losses, "weights": weights, "history": history.history}


def equivalent_sgd(strategy: Any, folder: Path) -> dict[str, Any]:
    return _equivalent(strategy, "sgd")


def equivalent_adam(strategy: Any, folder: Path) -> dict[str, Any]:
    return _equivalent(strategy, "adam")


def equivalent_clipped(strategy: Any, folder: Path) -> dict[str, Any]:
    return _equivalent(strategy, "clipped")


def equivalent_legacy(strategy: Any, folder: Path) -> dict[str, Any]:
    return _equivalent(strategy, "legacy")


def keras_itself(strategy: Any, folder: Path) -> dict[str, Any]:
    """Keras's own fit in one process: what all others are compared with."""
    del strategy
    found = {}
    of_keras_2 = ["legacy"] if getattr(keras, "__version__", "2") < "3" else []
    for optimizer in ("sgd", "adam", "clipped", *of_keras_2):
        compute_in("float64")
        keras.utils.set_random_seed(3)
        steps = EveryStep()
        model = compiled(rich_model(keras), optimizer)
        history = model.fit(rich_data(), epochs=2, shuffle=False, callbacks=[steps], verbose=0)
        found[optimizer] = _trained(model, steps, history)
        if optimizer == "sgd":
            found[optimizer]["evaluated"] = model.evaluate(rich_data(), verbose=0, return_dict=True)
    compute_in("float32")
    return found


def custom_loop(strategy: Any, folder: Path) -> dict[str, Any]:
    """A user's own loop, as in TensorFlow's guides, with a layer that writes variables as it is called."""
    with strategy.scope():
        layer = keras.layers.BatchNormalization(momentum=0.0)
        layer.build((None, 5))
        steps = tf.Variable(0.0)
    data = strategy.experimental_distribute_dataset(batches(*points()).take(1))

    def on_part(x: Any, y: Any) -> Any:
        steps.assign_add(1)  # an int for a variable of floats
        return tf.reduce_sum(layer(x, training=True))

    @tf.function
    def step(batch: Any) -> Any:
        return strategy.run(on_part, args=batch)

    for batch in data:
        total = strategy.reduce("SUM", step(batch), axis=None)
    moving = local_copies(strategy, layer.moving_mean)
    return {"total": float(total), "moving": moving, "steps": float(steps)}


def checkpointed(strategy: Any, folder: Path) -> dict[str, Any]:
    """Save a checkpoint on the chief alone, as a loop of the user's does, and restore it on all workers."""
    with strategy.scope():
        layer = keras.layers.Dense(1)
        layer.build((None, 2))
        checkpoint = tf.train.Checkpoint(layer=layer)
        manager = tf.train.CheckpointManager(checkpoint, str(folder / "own"), 3)
        saved = [weights.tolist() for weights in layer.get_weights()]
        if is_chief_of(strategy):
            manager.save()
        barrier()
        layer.set_weights([np.zeros((2, 1)), np.ones(1)])
        checkpoint.restore(tf.train.latest_checkpoint(manager.directory)).assert_existing_objects_matched()
    restored = [weights.tolist() for weights in layer.get_weights()]
    return {"is restored": restored == saved, "count": int(checkpoint.save_counter)}


def gathered(strategy: Any, folder: Path) -> dict[str, Any]:
    """Gather what replicas compute, in types that TensorFlow's collectives do not take."""
    own = strategy.cluster_resolver.task_id
    found = {}
    for dtype in (tf.bool, tf.uint8, tf.int8, tf.bfloat16, tf.int64):

        @tf.function(autograph=False)
        def step(dtype: Any = dtype) -> Any:
            values = strategy.run(lambda: tf.cast(tf.range(own + 2) - own, dtype))
            return strategy.gather(values, axis=0)

        found[dtype.name] = [float(number) for number in tf.cast(step(), tf.float32)]
    return found


def waiting(strategy: Any, folder: Path) -> float:
    """Signal that the cluster is connected, and wait until its servers have been told to end."""
    import time

    with strategy.scope():
        variable = tf.Variable(3.0)  # on a ps
    # A server that has not seen its chief yet would wait for it when it is gone.
    end = time.monotonic() + 600
    servers = [folder / f"{name}.log" for name in ("ps:0", "worker:0")]
    while not all("has found the chief" in log.read_text() for log in servers) and time.monotonic() < end:
        time.sleep(0.05)
    (folder / "connected").touch()
    while not (folder / "told").exists() and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(2)  # a server that ends at once would be gone by now
    return float(variable)


def failing(strategy: Any, folder: Path) -> dict[str, Any]:
    raise RuntimeError("the chief's own mistake")
