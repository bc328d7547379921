"""Be a task of a small cluster that measures a step: `python -m tfdist.simulation.probe FOLDER`."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfdist.cluster import ClusterConfig
from tfdist.errors import TfdistError
from tfdist.launcher import own_cores
from tfdist.loop import fit
from tfdist.models import build
from tfdist.server import serve
from tfdist.simulation.setup import Machine
from tfdist.strategy import make_strategy
from tfdist.usage import processor_seconds

__all__ = ["main"]

_BATCH, _SHAPE, _CLASSES = 128, (28, 28, 1), 10
# The chief gives out some steps at a time, and in the end workers wait for who has got the last ones.
_STEPS, _AT_ONCE, _EPOCHS = 100, 5, 2


def main(folder: Path) -> None:
    """Serve; or train for a while, and write what a step took."""
    cluster = ClusterConfig.from_environment()
    _bind(cluster)
    if cluster.serves:
        serve(cluster)
        return
    strategy = make_strategy(cluster, "parameter_server")
    with strategy.scope():
        model = build("mnist_cnn", image_shape=_SHAPE, classes=_CLASSES)
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss, steps_per_execution=_AT_ONCE)
    clock = _Clock(cluster)
    fit(
        model,
        lambda _: tf.data.Dataset.from_tensors(
            (tf.zeros((_BATCH, *_SHAPE)), tf.zeros(_BATCH, tf.int32))
        ).repeat(),
        strategy=strategy,
        epochs=_EPOCHS,
        steps_per_epoch=_STEPS * cluster.size("worker"),
        callbacks=[clock],
        verbose=0,
    )
    steps = _STEPS * cluster.size("worker") * (_EPOCHS - 1)
    used = {kind: seconds / steps for kind, seconds in clock.used.items()}
    found = {
        **used,
        "seconds": clock.seconds / steps,
        "examples_per_second": steps * _BATCH / clock.seconds,
        "batch_size": _BATCH,
        "bytes": 4 * model.count_params(),
    }
    Path(folder, "measured.json").write_text(json.dumps(found))


def _bind(cluster: ClusterConfig) -> None:
    """Bind this task to its core, before TensorFlow begins threads: the simulation knows nothing else."""
    if cluster.task:
        cores = own_cores()
        os.sched_setaffinity(0, {cores[Machine(cores=len(cores)).core_of(*cluster.task)]})


class _Clock(tf.keras.callbacks.Callback):  # type: ignore[misc]  # Keras ships no types
    """Measure time and processors' time from the end of the first epoch, in which functions are traced."""

    def __init__(self, cluster: ClusterConfig) -> None:
        super().__init__()
        self._cluster = cluster
        self.seconds = 0.0
        self.used: dict[str, float] = {}

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Begin after the first epoch, and end after the last."""
        if epoch == 0:
            self._began, self._before = time.monotonic(), self._processors()
        if epoch == _EPOCHS - 1:
            self.seconds = time.monotonic() - self._began
            after = self._processors()
            self.used = {kind: after[kind] - self._before[kind] for kind in after}

    def _processors(self) -> dict[str, float]:
        """Give the processors' seconds of all tasks of each kind."""
        found = {"chief": 0.0, "worker": 0.0, "ps": 0.0}
        for task, seconds in processor_seconds(self._cluster).items():
            found[task.partition(":")[0]] += seconds
        return found


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except TfdistError as error:
        print(f"tfdist: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
