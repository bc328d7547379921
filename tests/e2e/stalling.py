"""A model, a callback and data that get stuck once, as a user's may: for `model: {name: stalling:build}` and the like."""

import json
import os
import signal
import time
from pathlib import Path

import tensorflow as tf

from tfdist.trainer.batches_of_config import Batches

_make_batches = Batches.train
# Names a FIFO, whose reading does not return, beside an empty file with the ending .open. Who reads the FIFO makes a
# file with the ending .taken, and nobody does after that.
GATE = "STALLING_GATE"
WORKER, BATCH = 1, 6  # whose data wait there, and before which batch


def _waiting_batches(of_config, context, *arguments):
    """Return the batches, of which one waits at the gate: deep in TensorFlow, in no Python thread."""
    batches = _make_batches(of_config, context, *arguments)
    if context.num_input_pipelines > 1 and context.input_pipeline_id != WORKER:
        return batches
    gate = os.environ[GATE]
    taken = f"{gate}.taken"

    def take():
        with tf.control_dependencies([tf.io.write_file(taken, "")]):
            return tf.identity(gate)

    def wait(number, batch):
        images, labels = batch
        # The name depends on the number, or TensorFlow may look once, when it optimizes the graph.
        nothing = tf.strings.substr(tf.strings.as_string(number), 0, 0)
        is_free = tf.equal(tf.size(tf.io.matching_files(tf.strings.join([taken, nothing]))), 0)
        read = tf.io.read_file(tf.cond(tf.equal(number, BATCH) & is_free, take, lambda: f"{gate}.open"))
        return images, labels + tf.strings.length(read)  # which is empty

    return batches.enumerate().map(wait)


if GATE in os.environ:
    Batches.train = _waiting_batches


def build(image_shape, classes):
    layers = [tf.keras.layers.Rescaling(1 / 255), tf.keras.layers.Flatten(), tf.keras.layers.Dense(classes)]
    return tf.keras.Sequential([tf.keras.Input(image_shape), *layers])


class Sleeper(tf.keras.callbacks.Callback):
    """Sleep for ever after a step, in one task and in its first life."""

    def __init__(self, folder, task, step):
        super().__init__()
        self._mark, self._task, self._step, self._steps = Path(folder, "has-slept"), task, step, 0

    def on_train_batch_end(self, batch, logs=None):
        self._steps += 1
        task = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {"type": "this", "index": 0})
        is_here = f"{task['type']}:{task['index']}" == self._task
        if is_here and self._steps == self._step and not self._mark.exists():
            self._mark.touch()
            time.sleep(100_000)


def sleeper(folder, task, step=12):
    return Sleeper(folder, task, step)


class Held(tf.keras.callbacks.Callback):
    """Wait after a step while the file `hold` is there; write `held` then, and `told` after a signal to end."""

    def __init__(self, folder):
        super().__init__()
        self._folder = Path(folder)

    def on_train_begin(self, logs=None):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            handle = signal.getsignal(number)
            if callable(handle):
                signal.signal(number, lambda *arguments, handle=handle: self._told(handle, *arguments))

    def _told(self, handle, *arguments):
        handle(*arguments)
        (self._folder / "told").touch()

    def on_train_batch_end(self, batch, logs=None):
        while (self._folder / "hold").exists():
            (self._folder / "held").touch()
            time.sleep(0.02)


def held(folder):
    return Held(folder)
