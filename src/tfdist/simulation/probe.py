"""Be a task of a small cluster that measures a step: `python -m tfdist.simulation.probe FOLDER`."""

import json
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
from tfdist.usage import processor_seconds

__all__ = ["main"]

_BATCH, _INPUTS, _UNITS, _STEPS, _EPOCHS = 128, 784, 1024, 100, 3


def main(folder: Path) -> None:
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
    Path(folder, "measured.json").write_text(json.dumps(found))


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
