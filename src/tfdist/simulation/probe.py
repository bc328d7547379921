"""Be a task of a small cluster that measures what a step takes: `python -m tfdist.simulation.probe FILE`."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfdist.cluster import ClusterConfig
from tfdist.errors import TfdistError
from tfdist.loop import fit
from tfdist.server import serve
from tfdist.strategy import make_strategy

__all__ = ["main"]

_BATCH, _INPUTS, _UNITS, _STEPS, _EPOCHS = 128, 784, 1024, 100, 3


def main(path: Path) -> None:
    """Serve; or train for a while, and write what a step took."""
    cluster = ClusterConfig.from_environment()
    if cluster.serves:
        serve(cluster)
        return
    strategy = make_strategy(cluster, "parameter_server")
    layers = tf.keras.layers
    with strategy.scope():
        hidden = [layers.Dense(_UNITS, "relu") for _ in range(2)]
        model = tf.keras.Sequential([tf.keras.Input((_INPUTS,)), *hidden, layers.Dense(10)])
        model.compile("sgd", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    clock = _Clock(cluster)
    fit(
        model,
        lambda _: tf.data.Dataset.from_tensors(
            (tf.zeros((_BATCH, _INPUTS)), tf.zeros(_BATCH, tf.int32))
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
    path.write_text(json.dumps(found))


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
        """Give the processors' seconds of all tasks of each kind; the servers' kernels tell their own."""
        found = {"chief": time.process_time(), "worker": 0.0, "ps": 0.0}
        for task in self._cluster.tasks():
            if task.type != "chief":
                with tf.device(f"/job:{task.type}/task:{task.index}"):
                    stat = tf.io.read_file("/proc/self/stat")
                # What comes after the name, which may hold anything, and is in brackets.
                fields = stat.numpy().decode().rpartition(")")[2].split()
                found[task.type] += sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
        return found


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except TfdistError as error:
        print(f"tfdist: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
