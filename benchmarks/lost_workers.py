"""Kill asynchronous workers at random moments, and count how often each example was trained on.

    python benchmarks/lost_workers.py [--kills 200] [--seed 0]

Each example has a weight of its own, which grows by exactly 1 whenever a step trains on it. Two million more
weights, which take as long to send as the rest of a step, grow by 1 in each step, and the optimizer counts
the steps. Two workers and a parameter server train epoch after epoch; one of the workers is killed and
started again, again and again, while the other trains. In the end the weight of each example must be the
number of epochs, and the others and the optimizer's count must be the number of batches in all epochs.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from results import machine, put, table

from tfdist import ClusterConfig

_STEPS_OF_A_CALL, _BATCH, _BATCHES = 5, 4, 128
_MOST_SECONDS = 2.0  # from the moment that both workers train to the kill
_MOST_SECONDS_TO_TRAIN = 120.0


def main() -> None:
    """Read the flags, kill, and put what was counted into the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--task", type=Path, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.task:
        _train(flags.task)
        return
    with tempfile.TemporaryDirectory(prefix="lost-workers-") as folder:
        tasks = _Tasks(Path(folder))
        with tasks.running():
            away = _kill(tasks, flags.kills, random.Random(flags.seed))
            (tasks.folder / "stop").touch()
            statuses = tasks.end()
        found = json.loads((tasks.folder / "found.json").read_text())
    wanted = found["epochs"] * _BATCHES
    data = f"{found['epochs']} epochs of {_BATCHES} batches of {_BATCH} examples"
    head = f"{data}, {_STEPS_OF_A_CALL} steps in a graph call; seed {flags.seed}; {machine()}."
    columns = (
        "workers killed",
        "batches in all epochs",
        "steps by the optimizer",
        "by the large weight",
        "batches that did not count once in each epoch",
        "until a worker trains again, median",
    )
    shown = " and ".join(f"{each:g}" for each in found["updates"])
    numbers = (flags.kills, wanted, found["iterations"], shown, found["batches_off"])
    put("lost workers", head, table(columns, [[*map(str, numbers), f"{statistics.median(away):.1f} s"]]))
    counts = {found["iterations"], *found["updates"]}
    if any(statuses.values()) or counts != {wanted} or found["batches_off"]:
        sys.exit(
            f"benchmarks/lost_workers.py: expected {wanted} steps, each batch once in an epoch, and status 0;"
            f" received {found}, and {statuses}"
        )


class _Tasks:
    """The tasks of a cluster, each a process; the folder of their logs and of what they say."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._cluster = ClusterConfig.local(workers=2, ps=1)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Start all tasks, and end those that are left."""
        try:
            for task in self._cluster.tasks():
                self.start(str(task))
            yield
        finally:
            for process in self._processes.values():
                process.kill()
                process.wait()

    def start(self, name: str) -> None:
        job, _, index = name.partition(":")
        environment = {**os.environ, "TF_CONFIG": self._cluster.tf_config_json(job, int(index))}
        environment |= {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"}
        command = [sys.executable, str(Path(__file__).absolute()), "--task", str(self.folder)]
        own = self.folder / name
        own.mkdir(exist_ok=True)
        with (own / "log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command, env=environment, cwd=own, stdout=log, stderr=log
            )

    def kill(self, name: str) -> None:
        self._processes[name].send_signal(signal.SIGKILL)
        self._processes[name].wait()

    def end(self) -> dict[str, int]:
        """Wait for the end of all tasks; return their statuses."""
        return {
            name: process.wait(timeout=_MOST_SECONDS_TO_TRAIN) for name, process in self._processes.items()
        }

    def await_worker(self, index: int, since: float) -> None:
        """Wait until a worker has trained after a point in time."""
        began, note = time.monotonic(), self.folder / f"worker:{index}" / "trained"
        while not note.exists() or note.stat().st_mtime <= since:
            if time.monotonic() - began > _MOST_SECONDS_TO_TRAIN or self._processes["chief:0"].poll():
                sys.exit(
                    f"worker:{index} does not train: {(self.folder / 'chief:0' / 'log').read_text()[-3000:]}"
                )
            time.sleep(0.05)


def _kill(tasks: _Tasks, kills: int, chance: random.Random) -> list[float]:
    """Kill a worker so many times, and start it again; return the seconds until each trained again."""
    away = []
    for index in (0, 1):
        tasks.await_worker(index, 0.0)
    for number in range(kills):
        time.sleep(chance.random() * _MOST_SECONDS)
        index = chance.choice((0, 1))
        tasks.kill(f"worker:{index}")
        began, since = time.monotonic(), time.time()
        tasks.start(f"worker:{index}")
        tasks.await_worker(index, since)
        away.append(time.monotonic() - began)
        print(f"{number + 1} of {kills}: worker:{index} trains again after {away[-1]:.1f} s", flush=True)
    return away


def _train(folder: Path) -> None:
    """Run the task that TF_CONFIG names; the chief writes what was counted."""
    import keras
    import numpy as np
    import tensorflow as tf

    import tfdist

    strategy = tfdist.start("parameter_server")
    examples = _BATCHES * _BATCH

    class Large(keras.layers.Layer):  # type: ignore[misc]
        """Weights that grow by 1 in each step; it writes down that this worker trains."""

        def build(self, shape: Any) -> None:
            self.growing = self.add_weight(shape=(1500, 1500), initializer="zeros")

        def call(self, numbers: Any) -> Any:
            tf.io.write_file("trained", "")  # in the folder where this worker runs
            return tf.reduce_sum(self.growing) / _BATCH

    class Counting(keras.Model):  # type: ignore[misc]
        """A model with a weight for each example, which grows by 1 in each step that trains on it."""

        def __init__(self) -> None:
            super().__init__()
            self.large = Large()
            self.dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")

        def call(self, numbers: Any) -> Any:
            return self.dense(tf.one_hot(tf.cast(numbers[:, 0], tf.int32), examples)) + self.large(numbers)

    class UntilTold(keras.callbacks.Callback):  # type: ignore[misc]
        epochs = 0

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.epochs, self.model.stop_training = epoch + 1, (folder / "stop").exists()

    with strategy.scope():
        model = Counting()
        model.compile(
            keras.optimizers.SGD(float(_BATCH)),
            lambda _, seen: -seen,
            steps_per_execution=_STEPS_OF_A_CALL,
        )
    numbers, told = np.arange(float(examples))[:, np.newaxis], UntilTold()
    data = tf.data.Dataset.from_tensor_slices((numbers, numbers)).batch(_BATCH)
    model.fit(data, epochs=10**6, verbose=0, callbacks=[told])
    seen = model.dense.get_weights()[0].reshape(_BATCHES, _BATCH)
    found = {
        "epochs": told.epochs,
        "iterations": int(model.optimizer.iterations.numpy()),
        "batches_off": int((seen != told.epochs).any(axis=1).sum()),
        "updates": sorted(map(float, np.unique(model.large.growing.numpy()))),
    }
    (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
