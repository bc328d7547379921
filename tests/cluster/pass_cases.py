"""Data that asynchronous workers read several times."""

import time
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfdist.training.checkpoints.checkpoint_callback import CheckpointAndResume
from tfdist.training.evaluate import evaluate
from tfdist.training.fit import fit

keras = tf.keras
SIZE, BATCH, EPOCHS = 24, 2, 3


class _Written(keras.layers.Layer):
    """Write each batch to a file; all tasks are on one machine."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.written_to = path

    def call(self, x: tf.Tensor) -> tf.Tensor:
        written = tf.print(tf.reshape(x, [-1]), output_stream=f"file://{self.written_to}", summarize=-1)
        with tf.control_dependencies([written]):
            return tf.identity(x)


def _drawn(dataset: tf.data.Dataset) -> tf.data.Dataset:
    return dataset.map(lambda x: x + 100 * tf.cast(tf.random.uniform([], 1, 9, tf.int32), tf.float32))


def _shuffled() -> tf.data.Dataset:
    return tf.data.Dataset.range(SIZE).map(lambda x: tf.cast(x, tf.float32)).shuffle(SIZE, seed=1)


def _of_context(context: tf.distribute.InputContext) -> tf.data.Dataset:
    part = tf.data.Dataset.range(SIZE).map(lambda x: tf.cast(x, tf.float32))
    part = part.shard(context.num_input_pipelines, context.input_pipeline_id)
    return _batches(part.shuffle(SIZE, seed=1))


def _batches(dataset: tf.data.Dataset) -> tf.data.Dataset:
    return dataset.batch(BATCH).map(lambda x: (x[:, None], x[:, None]))


DATA = {
    "shuffled": lambda: _batches(_shuffled()),
    "of a function": lambda: _of_context,
    "cached": lambda: _batches(_drawn(_shuffled().take(SIZE)).cache()),
    "shuffled and cached": lambda: _batches(_shuffled().cache().shuffle(SIZE, seed=2)),
}


def passes(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """Return the batches of each epoch in the order in which workers computed on them."""
    path = folder / "batches"
    found = {name: _of_epochs(strategy, path, [(make(), {})]) for name, make in DATA.items()}
    data = DATA["shuffled"]()
    found["of three calls"] = _of_epochs(strategy, path, [(data, {"epochs": 1})] * EPOCHS)
    if keras.__version__ >= "3":
        for name in ("shuffled", "shuffled and cached"):
            stopped = [CheckpointAndResume(folder / name)]
            first, second = (
                (DATA[name](), {"epochs": count, "callbacks": stopped}) for count in (EPOCHS - 1, EPOCHS)
            )
            found[f"{name}, resumed"] = _of_epochs(strategy, path, [first, second])
    return found


class _Pause(keras.callbacks.Callback):
    """Wait between two epochs until the file `again` is there."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 1:
            (self.folder / "begun").touch()
            while not (self.folder / "again").exists():
                time.sleep(0.05)


def with_a_lost_worker(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """Return the batches of each epoch without a pause, and with one in which a worker may be lost."""
    call, options = DATA["shuffled and cached"], {"callbacks": [_Pause(folder)]}
    return {
        "paused": _of_epochs(strategy, folder / "paused", [(call(), options)]),
        "expected": _of_epochs(strategy, folder / "expected", [(call(), {})]),
    }


def tested(strategy: tf.distribute.Strategy, folder: Path) -> list[float]:
    """Return losses on the first batch of some, whose mean is that of its numbers."""
    with strategy.scope():
        layer = keras.layers.Dense(1, kernel_initializer="ones", trainable=False)
        model = keras.Sequential([keras.Input((1,)), layer])
        model.compile(keras.optimizers.SGD(0.0), "mae")
    data = (
        tf.data.Dataset.range(SIZE)
        .batch(BATCH)
        .map(lambda x: (tf.cast(x, tf.float32)[:, None], tf.zeros([BATCH, 1])))
    )
    losses = [evaluate(model, data, strategy=strategy, steps=1, verbose=0) for _ in range(4)]
    options = {"validation_data": data, "validation_steps": 1, "epochs": 4}
    return losses + fit(model, data, strategy=strategy, verbose=0, **options).history["val_loss"]


def _of_epochs(strategy: tf.distribute.Strategy, path: Path, calls: Any) -> list[list[list[float]]]:
    path.unlink(missing_ok=True)
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), _Written(path), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.0), "mse")
    for data, options in calls:
        fit(model, data, strategy=strategy, verbose=0, **{"epochs": EPOCHS} | options)
    batches = [
        [float(number) for number in line.strip("[]").split()] for line in path.read_text().splitlines()
    ]
    each = len(batches) // EPOCHS
    return [batches[start : start + each] for start in range(0, len(batches), each)]
