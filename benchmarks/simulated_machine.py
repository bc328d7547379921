"""Compare the simulation with this machine: predict two and three workers from one, and measure them.

    python benchmarks/simulated_machine.py [--rounds 3] [--workers 2 3]

Every task is bound to a core with one thread, in the simulation and in what is measured. It takes about four
minutes with three rounds, and wants a machine that does nothing else.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import tensorflow as tf

from tfdist.benchmark.measure_task import processor_seconds
from tfdist.benchmark.report import spread
from tfdist.benchmark.run_scenario import try_out
from tfdist.cluster.config import ClusterConfig
from tfdist.launcher.share_cores_and_gpus import own_cores
from tfdist.models.model_by_name import build
from tfdist.simulation.forecast import forecast
from tfdist.simulation.setup import Compute, Exchange, Machine, Network, Servers, Setup
from tfdist.strategies.factory import make_strategy
from tfdist.strategies.server import serve
from tfdist.training.fit import fit

_BATCH, _SHAPE, _CLASSES = 128, (28, 28, 1), 10
# The chief gives out some steps at a time, and in the end workers wait for who has got the last ones.
_STEPS, _AT_ONCE, _EPOCHS = 100, 5, 2
_LATENCIES_OF_A_STEP = 4  # asking for the variables, having them, sending gradients, hearing that they are in
# Of what a worker works: clocks that count in hundredths of a second may say that it is all.
_MOST_BESIDE = 0.9
_BESIDE_THE_PROCESSOR = 1e12  # bytes per second: what copying takes is in the processors' time


class Measured(msgspec.Struct, frozen=True):
    """The seconds that a step of one worker takes on this machine, summed over the tasks of a kind."""

    seconds: float
    examples_per_second: float
    worker: float
    ps: float
    chief: float
    batch_size: int
    bytes: float

    @property
    def cores(self) -> float:
        """Return how many cores all tasks together kept busy."""
        return (self.worker + self.ps + self.chief) / self.seconds


class Prediction(NamedTuple):
    """The predicted and the measured rates of each round, for a number of workers."""

    workers: int
    predicted: list[float]
    measured: list[float]
    cores: list[float]

    def __str__(self) -> str:
        pairs = zip(self.predicted, self.measured, strict=True)
        apart = [100 * (predicted / measured - 1) for predicted, measured in pairs]
        measured, predicted = spread(self.measured, ".0f"), spread(self.predicted, ".0f")
        return (
            f"{self.workers} workers: measured {measured} examples/s, predicted {predicted},"
            f" apart {spread(apart, '+.0f')} %; {spread(self.cores, '.2f')} cores were busy"
        )


def check_machine(rounds: int, workers: Sequence[int] = (2, 3)) -> list[Prediction]:
    """Measure one worker beside a ps, predict more of them, and measure those too; so many times in turn."""
    found = [Prediction(count, [], [], []) for count in workers]
    for _ in range(rounds):
        setup = setup_of(_measured(1), cores=len(own_cores()))
        for each in found:
            each.predicted.append(forecast(setup, each.workers, steps=_STEPS).examples_per_second)
            measured = _measured(each.workers)
            each.measured.append(measured.examples_per_second)
            each.cores.append(measured.cores)
    return found


def setup_of(one: Measured, *, cores: int) -> Setup:
    """Derive what is simulated from a measured cluster with one worker.

    What of a step no processor worked for was spent on the way between the tasks. Where the processors worked
    for longer than a step takes, the worker worked on while the others were at its gradients.
    """
    idle = one.seconds - one.worker - one.ps - one.chief
    beside = min(max(0.0, -idle), _MOST_BESIDE * one.worker)
    compute = Compute(
        seconds_per_example=(one.worker - beside) / one.batch_size, batch_size=one.batch_size, spread=0.1
    )
    return Setup(
        strategy="parameter_server",
        compute=compute,
        exchange=Exchange(dense_bytes=one.bytes),
        network=Network(
            bytes_per_second=_BESIDE_THE_PROCESSOR,
            latency=max(0.0, idle) / _LATENCIES_OF_A_STEP,
        ),
        servers=Servers(seconds_per_step=one.ps, chief_seconds=one.chief),
        machine=Machine(cores=cores, beside=beside),
    )


def _measured(workers: int) -> Measured:
    trial = try_out(
        ClusterConfig.local(workers=workers, ps=1),
        [sys.executable, __file__, "--task"],
        # As it is: the tasks are to find what this process has found.
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
        threads=1,
    )
    return msgspec.convert(trial.written["measured"], Measured)


def train(folder: Path) -> None:
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
        """Return the processors' seconds of all tasks of each kind."""
        found = {"chief": 0.0, "worker": 0.0, "ps": 0.0}
        for task, seconds in processor_seconds(self._cluster).items():
            found[task.partition(":")[0]] += seconds
        return found


def main() -> None:
    """Read the flags, and compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 3])
    flags: Any = parser.parse_args()
    print(f"{os.cpu_count()} cores; load before: {os.getloadavg()[0]:.1f}")
    for prediction in check_machine(flags.rounds, flags.workers):
        print(prediction, flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--task"]:
        train(Path(sys.argv[2]))
    else:
        main()
