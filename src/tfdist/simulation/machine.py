"""Hold the simulation against this machine: from one worker beside a ps, predict two and three."""

import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from tfdist.cluster import ClusterConfig
from tfdist.launcher import own_cores
from tfdist.simulation.forecasting import forecast
from tfdist.simulation.setup import Compute, Exchange, Machine, Network, Servers, Setup
from tfdist.trial import spread, try_out

__all__ = ["Measured", "Prediction", "check_machine", "setup_of"]

_LATENCIES_OF_A_STEP = 4  # asking for the variables, having them, sending gradients, hearing that they are in
_STEPS = 100  # of each simulated worker: with few workers the first and last ones weigh
# Of what a worker works: clocks that count in hundredths of a second may say that it is all.
_MOST_BESIDE = 0.9
_BESIDE_THE_PROCESSOR = 1e12  # bytes per second: what copying takes is in the processors' time


class Measured(msgspec.Struct, frozen=True):
    """Hold what a step of one worker took on this machine; seconds of all tasks of a kind together."""

    seconds: float
    examples_per_second: float
    worker: float
    ps: float
    chief: float
    batch_size: int
    bytes: float

    @property
    def cores(self) -> float:
        """Say how many cores all tasks together kept busy."""
        return (self.worker + self.ps + self.chief) / self.seconds


class Prediction(NamedTuple):
    """Hold what was predicted for a number of workers, and measured, in each round."""

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
    """Make of a measured cluster with one worker what is simulated.

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
        [sys.executable, "-m", "tfdist.simulation.probe"],
        # As it is: the tasks are to find what this process has found.
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
        threads=1,
    )
    return msgspec.convert(trial.found["measured"], Measured)
