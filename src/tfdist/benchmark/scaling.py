"""Measure one process and clusters of several sizes, in turns."""

import logging
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tfdist.benchmark.breakdown import Parts, parts_of
from tfdist.benchmark.run_scenario import run
from tfdist.benchmark.scenarios import Bench, Scenario, alone, of_workers, whole_machine
from tfdist.benchmark.task_measurements import Sample
from tfdist.launcher.share_cores_and_gpus import own_cores, own_gpus
from tfdist.strategies.options import is_gpu_used

_log = logging.getLogger("tfdist")


@dataclass(frozen=True)
class Row:
    """The result of one scenario, over all rounds.

    Attributes:
        scenario: The scenario.
        samples: The measurements of each round.
        speedups: The speed-up over one process, of each round.
        parts: The parts of a step, in the round of median speed.
    """

    scenario: Scenario
    samples: Sequence[Sample]
    speedups: Sequence[float]
    parts: Parts

    @property
    def speeds(self) -> list[float]:
        """Return the examples per second of each round."""
        return [sample.examples_per_second for sample in self.samples]

    @property
    def speed(self) -> float:
        """Return the median of the rounds' examples per second."""
        return statistics.median(self.speeds)

    @property
    def speedup(self) -> float:
        """Return the median speed-up over one process."""
        return statistics.median(self.speedups)

    @property
    def efficiency(self) -> float:
        """Return the speed-up per worker."""
        return self.speedup / self.scenario.workers

    @property
    def spread(self) -> float:
        """Return the range of the rounds' speeds, as a share of the median."""
        return (max(self.speeds) - min(self.speeds)) / self.speed


@dataclass(frozen=True)
class Scaling:
    """The measurements of one process on a worker's share of the machine, and of clusters of workers.

    Attributes:
        bench: What was measured, and how often.
        rows: One process first, then the config's strategy with a growing number of workers.
        machine: One process with all cores; None if a worker has all of them anyway.
        cores: How many cores there are.
        outside: How many cores other programs kept busy in the worst run; None if that is unknown.
        shortest: The measured seconds of the shortest run.
    """

    bench: Bench
    rows: Sequence[Row]
    machine: Row | None
    cores: int
    outside: float | None
    shortest: float


def measure_scaling(bench: Bench, counts: Sequence[int]) -> Scaling:
    """Measure the config with each of these numbers of workers.

    The baseline is one process on one worker's share of the machine. It computes whole batches, as a step
    of the cluster does, unless each worker's part is to stay the same.
    """
    base = alone(bench, bench.batch(1))
    scenarios = [base]
    if bench.strategy != "one_device":
        # A single mirrored worker exchanges nothing.
        mirrored_alone = bench.strategy == "multi_worker_mirrored"
        scenarios += [of_workers(bench, count) for count in counts if count > 1 or not mirrored_alone]
    # One worker alone with its part of the batch: needed where the exchange is not measured.
    parts = (
        {}
        if _measures_exchange(bench)
        else {scenario.name: _one_part(bench, scenario) for scenario in scenarios[1:]}
    )
    machine = whole_machine(bench) if len(own_cores()) > bench.cores else None
    extra = [machine] if machine else []
    samples_by_name = run_in_rounds(bench, [*scenarios, *parts.values(), *extra])

    def row(scenario: Scenario) -> Row:
        samples = samples_by_name[scenario.name]
        speedups = [
            sample.examples_per_second / baseline.examples_per_second
            for sample, baseline in zip(samples, samples_by_name[base.name], strict=True)
        ]
        middle = sorted(range(len(samples)), key=lambda place: samples[place].examples_per_second)
        place = middle[len(middle) // 2]
        worker_alone = samples_by_name[parts[scenario.name].name][place] if scenario.name in parts else None
        return Row(scenario, samples, speedups, parts_of(samples[place], worker_alone))

    every = [sample for samples in samples_by_name.values() for sample in samples]
    return Scaling(
        bench=bench,
        rows=[row(scenario) for scenario in scenarios],
        machine=row(machine) if machine else None,
        cores=len(own_cores()),
        outside=max((sample.outside for sample in every if sample.outside is not None), default=None),
        shortest=bench.steps * min(sample.step for sample in every),
    )


def run_in_rounds(bench: Bench, scenarios: Sequence[Scenario]) -> dict[str, list[Sample]]:
    """Run all scenarios one after the other, once per round; return the samples by the scenarios' names."""
    samples: dict[str, list[Sample]] = {scenario.name: [] for scenario in scenarios}
    for number in range(bench.rounds):
        for scenario in {scenario.name: scenario for scenario in scenarios}.values():
            sample = run(bench, scenario)
            samples[scenario.name].append(sample)
            progress = f"round {number + 1} of {bench.rounds}: {scenario.name}"
            _log.info("%s: %.0f examples/s", progress, sample.examples_per_second)
    return samples


def _one_part(bench: Bench, scenario: Scenario) -> Scenario:
    batch = bench.part(scenario.workers)
    if batch == bench.batch(1) and bench.replicas == 1:
        return alone(bench, batch)  # this is measured anyway
    own = alone(bench, batch, parts=bench.replicas)
    return own.changed(f"one process, {batch} examples a step")


def _measures_exchange(bench: Bench) -> bool:
    """Return whether the exchange measures its time: the ring does, TensorFlow's collectives do not."""
    config = bench.settings.config
    on_gpus = is_gpu_used(config.strategy.device, len(own_gpus()))
    by_ring = config.communication.may_use_tcp(on_gpus=on_gpus)
    return bench.strategy == "multi_worker_mirrored" and by_ring
