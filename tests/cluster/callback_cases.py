"""Callbacks that write files, that decide, that stop training, and that take it up again."""

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from cases import batches, points

from tfdist._utils.strategy_kinds import is_asynchronous
from tfdist.training.barrier import barrier
from tfdist.training.evaluate import evaluate
from tfdist.training.fit import fit

keras = tf.keras
IS_KERAS_2 = getattr(keras, "__version__", "2") < "3"  # tf_keras does not say
WEIGHTS = ".h5" if IS_KERAS_2 else ".weights.h5"
EPOCHS, KILLED_IN = 4, 2
MANY = 3


def folder_of_this_task(strategy: tf.distribute.Strategy, folder: Path) -> Path:
    """Create and return a folder for this task alone, as if each task had a disk of its own."""
    resolver = strategy.cluster_resolver
    own = folder / ("alone" if resolver is None else f"{resolver.task_type}-{resolver.task_id}")
    own.mkdir(exist_ok=True)
    return own


def compiled_model(strategy: tf.distribute.Strategy) -> Any:
    keras.utils.set_random_seed(4)
    with strategy.scope():
        layers = [keras.layers.Dense(4), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((5,)), *layers])
        model.compile(keras.optimizers.Adam(0.1), "mse")
    return model


def writing(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """Callbacks that write files, and some that decide."""
    own, callbacks = folder_of_this_task(strategy, folder), keras.callbacks
    model = compiled_model(strategy)
    given = [
        callbacks.ModelCheckpoint(str(own / ("best" + WEIGHTS)), save_weights_only=True, save_best_only=True),
        callbacks.CSVLogger(str(own / "log.csv")),
        callbacks.TensorBoard(str(own / "board"), profile_batch=0),
        callbacks.BackupAndRestore(str(own / "backup")),
        callbacks.EarlyStopping("val_loss", min_delta=1e9, patience=1, restore_best_weights=True),
        callbacks.ReduceLROnPlateau("val_loss", factor=0.5, min_delta=1e9, patience=1),
        callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5),
    ]
    data = batches(*points())
    history = fit(model, data, strategy=strategy, epochs=9, validation_data=data, callbacks=given, verbose=0)
    return {
        "epochs": len(history.epoch),
        "rate": float(model.optimizer.learning_rate),
        "steps": int(model.optimizer.iterations),
        "csv": (own / "log.csv").read_text().splitlines() if (own / "log.csv").exists() else [],
        "written": sorted(str(each.relative_to(own)) for each in own.rglob("*") if each.is_file()),
        "weights": [each.tolist() for each in model.get_weights()],
    }


class StopAt(keras.callbacks.Callback):
    """Ask for an end, in this process alone."""

    def __init__(self, batch: int) -> None:
        super().__init__()
        self.batch = batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == self.batch:
            self.model.stop_training = True


class _Sets(keras.callbacks.Callback):
    """Set all weights to the number of batches so far, and note the loss of each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.losses.append(float(logs["loss"]))
        value = np.float32(len(self.losses))
        self.model.set_weights([np.full(weights.shape, value) for weights in self.model.get_weights()])


def setting(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """Set all weights after each batch; nothing else changes them."""
    with strategy.scope():
        inputs = keras.Input((1,))
        layers = [keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros") for _ in range(MANY)]
        model = keras.Model(inputs, keras.layers.Average()([layer(inputs) for layer in layers]))
        model.compile(keras.optimizers.SGD(0.0), "mse")
    x = np.ones((2, 1), "float32")
    data = tf.data.Dataset.from_tensor_slices((x, 0 * x)).batch(2).repeat(60)
    sets = _Sets()
    fit(model, data, strategy=strategy, callbacks=[sets], verbose=0)
    return {"losses": sets.losses}


def stopping(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """One worker alone asks for an end: in the middle of an epoch, and by callbacks of Keras's."""
    is_last = strategy.cluster_resolver.task_id == 1
    early = keras.callbacks.EarlyStopping("loss", min_delta=1e9, patience=1)
    found = {}
    asking = {"batch": StopAt(3), "early": early, "nan": keras.callbacks.TerminateOnNaN()}
    for name, callback in asking.items():
        model = compiled_model(strategy)
        callbacks = [callback] if is_last else []
        x, y = points()
        if name == "nan":
            y[30] = np.nan  # in the third batch
        history = fit(model, batches(x, y), strategy=strategy, epochs=5, callbacks=callbacks, verbose=0)
        found[name] = [len(history.epoch), int(model.optimizer.iterations.numpy())]
    return found


class _Reads(keras.callbacks.Callback):
    """Read the metrics of the model, and the variables of them, beside the logs."""

    def __init__(self, read: list[list[float]]) -> None:
        super().__init__()
        self.read = read

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        results = self.model.get_metrics_result()
        self.read += [[float(logs[name]), float(results[name])] for name in ("loss", "mae")]

    def on_test_end(self, logs: Any = None) -> None:
        self.on_train_batch_end(0, logs)
        [variable.numpy() for variable in self.model.metrics_variables]  # as OrbaxCheckpoint does


def reading(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any] | None:
    """Read metrics in a callback of the chief alone, then of both workers, and after the training."""
    if IS_KERAS_2:  # whose metrics have a part on each worker
        return None
    model, data, read = compiled_model(strategy), batches(*points()), []
    options = {"strategy": strategy, "verbose": 0}
    after = []
    for has_read, scope in (
        (strategy.extended.should_checkpoint, strategy.scope()),
        (True, contextlib.nullcontext()),
    ):
        with scope:
            model.compile(keras.optimizers.SGD(0.01), "mse", metrics=["mae"])
        callbacks = [_Reads(read)] if has_read else []
        logs = fit(model, data, validation_data=data, callbacks=callbacks, **options).history
        after.append([logs["val_loss"][0], float(model.get_metrics_result()["loss"])])
        loss, _ = evaluate(model, data, callbacks=callbacks, **options)
        after.append([loss, float(model.get_metrics_result()["loss"])])
    return {"read": read, "after": after}


class OwnCheckpoint(keras.callbacks.ModelCheckpoint):
    """Write weights late, as a slow disk does."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        time.sleep(1)
        super().on_epoch_end(epoch, logs)


class _Loads(keras.callbacks.Callback):
    """Load the weights that a callback before it has written."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        barrier()
        self.model.load_weights(str(self.path))


def loading(strategy: tf.distribute.Strategy, folder: Path) -> list[Any]:
    """Load on each worker what the chief has written just before; return the weights."""
    model, path = compiled_model(strategy), folder / ("own" + WEIGHTS)
    own = OwnCheckpoint(str(path), monitor="loss", mode="max", save_weights_only=True, save_best_only=True)
    fit(model, batches(*points()), strategy=strategy, epochs=3, callbacks=[own, _Loads(path)], verbose=0)
    return [each.tolist() for each in model.get_weights()]


class Interrupted(keras.callbacks.Callback):
    """Note what there is when an epoch begins, and end the process in the middle of one."""

    def __init__(self, own: Path) -> None:
        super().__init__()
        self.notes = own / "notes.npz"
        self.is_again = self.notes.exists()
        self.begun: list[int] = []
        self.differs: list[int] | None = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        state = self.state()
        if self.is_again and not self.begun:
            noted = np.load(self.notes)
            pairs = zip((noted[f"arr_{n}"] for n in range(len(noted.files))), state, strict=True)
            self.differs = [n for n, (then, now) in enumerate(pairs) if not np.array_equal(then, now)]
        elif epoch == KILLED_IN and not self.is_again:
            np.savez(self.notes, *state)
        self.begun.append(epoch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if not self.is_again and self.begun[-1] == KILLED_IN and batch == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    def state(self) -> list[np.ndarray]:
        optimizer = self.model.optimizer
        variables = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
        return [*self.model.get_weights(), *(np.array(tf.convert_to_tensor(each)) for each in variables)]


def resuming(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """Begin and be killed, or, the second time, go on; then do the same without an interruption."""
    own, data = folder_of_this_task(strategy, folder), batches(*points())
    model, interrupted = compiled_model(strategy), Interrupted(own)
    # Keras calls them in this order: what is noted when an epoch begins is what the last backup holds.
    callbacks = [keras.callbacks.BackupAndRestore(str(own / "backup")), interrupted]
    if not IS_KERAS_2 and not strategy.extended.should_checkpoint:
        del callbacks[0]  # who does not write may as well do without it; in Keras 2, all have to save
    # As after `tfdist.start()`; a checkpoint of Keras 2 makes a counter in the scope where it restores.
    with contextlib.nullcontext() if IS_KERAS_2 else strategy.scope():
        history = fit(model, data, strategy=strategy, epochs=EPOCHS, callbacks=callbacks, verbose=0)
    at_once = compiled_model(strategy)
    if not is_asynchronous(strategy):  # whose numbers are others each time
        fit(at_once, data, strategy=strategy, epochs=EPOCHS, verbose=0)
    return {
        "begun": interrupted.begun,
        "epochs": history.epoch,
        "differs": interrupted.differs,
        "iterations": int(model.optimizer.iterations.numpy()),
        "weights": [each.tolist() for each in model.get_weights()],
        "at_once": [each.tolist() for each in at_once.get_weights()],
        "left": sorted(each.name for each in own.rglob("*") if each.is_file()),
    }
