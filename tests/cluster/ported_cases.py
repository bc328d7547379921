"""A script as it is written for Keras's own fit, evaluate and predict, and run on a cluster."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.training.evaluate import evaluate
from tfdist.training.fit import fit
from tfdist.training.predict import predict

keras = tf.keras
COUNT, BATCH = 18, 4  # 5 batches, the last of two examples


class Calls(keras.callbacks.Callback):
    """Write down what is called, and stop where that is asked for."""

    def __init__(self, until: int | None = None) -> None:
        super().__init__()
        self.calls: list[Any] = []
        self.until = until

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.calls.append(batch)

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == self.until:
            self.model.stop_evaluating = True


def pictures(count: int = COUNT) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(1).normal(size=(count, 6, 6, 2)).astype("float32")
    return x, x[:, 0, 0]


def batches(count: int = COUNT) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(pictures(count)).batch(BATCH)


def model_of_pictures() -> Any:
    keras.utils.set_random_seed(2)
    layers = [keras.layers.Conv2D(4, 3), keras.layers.Flatten(), keras.layers.Dense(2)]
    model = keras.Sequential([keras.Input((6, 6, 2)), *layers])
    model.compile(keras.optimizers.SGD(0.01), "mse", metrics=["mae"])
    return model


def by(train: Any, test: Any, ask: Any, make: Any) -> dict[str, Any]:
    """Train, evaluate and predict, with Keras's functions or with those of tfdist."""
    model, calls = make(), Calls()
    arguments = {"epochs": 3, "validation_freq": [1, 3], "verbose": 0}
    history = train(
        model, batches(), validation_data=batches(), steps_per_epoch=np.int64(8), callbacks=calls, **arguments
    )
    x, y = pictures()
    arrays = train(make(), x, y, batch_size=BATCH, epochs=2, validation_split=0.2, shuffle=True, verbose=0)
    return {
        "history": history.history,
        "arrays": arrays.history,
        "indices": calls.calls,
        "alone": test(model, batches(1), verbose=0, callbacks=None),
        "steps": test(model, batches(), steps=2, verbose=0, return_dict=True),
        "predicted": [ask(model, batches(count), verbose=0).tolist() for count in (1, COUNT)],
    }


def ported(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """Train for more steps than there are data, evaluate, and predict one picture."""

    def make() -> Any:
        with strategy.scope():
            return model_of_pictures()

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Your input ran out of data")
        found = by(fit, evaluate, predict, make)
    is_last = getattr(strategy.cluster_resolver, "task_id", 0) in (
        None,
        1,
    )  # one worker alone asks for an end
    is_last = is_last or not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    calls = Calls(until=1) if is_last else None
    found["stopped"] = evaluate(make(), batches(), verbose=0, callbacks=calls)
    if not isinstance(strategy, tf.distribute.ParameterServerStrategy):
        found["generated"], found["is_kept"] = generated(fit, make())
    return found


def generated(train: Any, model: Any) -> tuple[list[float], bool]:
    """Train on parts of arrays, which a step must not write to; return the losses, and whether they are kept."""
    x, y = pictures(16)
    kept = x.copy(), y.copy()

    def parts() -> Any:
        for begin in range(0, 16, 8):
            yield x[begin : begin + 8], y[begin : begin + 8]

    spec = tf.TensorSpec((None, *x.shape[1:])), tf.TensorSpec((None, *y.shape[1:]))
    data = tf.data.Dataset.from_generator(parts, output_signature=spec)
    losses = train(model, data, epochs=2, verbose=0).history["loss"]
    return losses, bool((x == kept[0]).all() and (y == kept[1]).all())


def by_keras() -> dict[str, Any]:
    """Return what Keras itself makes of the script."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = by(
            lambda model, *data, **arguments: model.fit(*data, **{"shuffle": False, **arguments}),
            lambda model, data, **arguments: model.evaluate(data, **arguments),
            lambda model, data, **arguments: model.predict(data, **arguments),
            model_of_pictures,
        )
        found["stopped"] = model_of_pictures().evaluate(batches().take(2), verbose=0)
        train = lambda model, data, **arguments: model.fit(data, shuffle=False, **arguments)  # noqa: E731
        found["generated"], _ = generated(train, model_of_pictures())
    return found
