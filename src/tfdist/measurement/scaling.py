"""Measure one process and clusters of several sizes, in turns."""

import logging
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tfdist.launcher import own_cores, own_gpus
from tfdist.measurement.breakdown import Parts, parts_of
from tfdist.measurement.records import Sample
from tfdist.measurement.ways import Bench, Way, alone, of_workers, run, whole_machine

__all__ = ["Row", "Scaling", "in_turns", "measure_scaling"]

_log = logging.getLogger("tfdist")


@dataclass(frozen=True)
class Row:
    """Hold what one way of training reaches, over all rounds.

    Attributes:
        way: The way.
        samples: What each round has measured.
        speedups: Of each round, how many times as fast as one process it is.
        parts: Where the time of a step goes, in the round whose speed is the median.
    """

    way: Way
    samples: Sequence[Sample]
    speedups: Sequence[float]
    parts: Parts

    @property
    def speeds(self) -> list[float]:
        """Give the examples per second of each round."""
        return [each.examples_per_second for each in self.samples]

    @property
    def speed(self) -> float:
        """Give the median of them."""
        return statistics.median(self.speeds)

    @property
    def speedup(self) -> float:
        """Give how many times as fast as one process it is."""
        return statistics.median(self.speedups)

    @property
    def efficiency(self) -> float:
        """Give the speed-up of each worker."""
        return self.speedup / self.way.workers

    @property
    def spread(self) -> float:
        """Give how far the rounds are apart, as a share of the median."""
        return (max(self.speeds) - min(self.speeds)) / self.speed


@dataclass(frozen=True)
class Scaling:
    """Hold what was measured: one process on a worker's share of the machine, and clusters of workers.

    Attributes:
        bench: What was measured.
        rows: One process first, then the config's strategy with ever more workers.
        machine: One process with all the cores; None where a worker has all of them anyway.
        cores: How many cores there are.
        outside: How many of them others kept busy, in the worst run; None where that is not known.
        shortest: The seconds that the shortest run was measured for.
    """

    bench: Bench
    rows: Sequence[Row]
    machine: Row | None
    cores: int
    outside: float | None
    shortest: float


def measure_scaling(bench: Bench, counts: Sequence[int]) -> Scaling:
    """Measure the config with so many workers each.

    One process is what all is held against. It computes on one worker's share of the machine, and on whole
    batches, as a step of the cluster does, unless each worker's part is to stay the same.
    """
    base = alone(bench, bench.batch(1))
    ways = [base]
    if bench.strategy != "one_device":
        mirrored_alone = bench.strategy == "multi_worker_mirrored"  # one of these exchanges nothing
        ways += [of_workers(bench, count) for count in counts if count > 1 or not mirrored_alone]
    # What a worker would do alone with its part of the batch: needed where the exchange is not measured.
    parts = {} if _tells_its_time(bench) else {way.name: _part_of(bench, way) for way in ways[1:]}
    machine = whole_machine(bench) if len(own_cores()) > bench.cores else None
    extra = [machine] if machine else []
    found = in_turns(bench, [*ways, *parts.values(), *extra])

    def row(way: Way) -> Row:
        samples = found[way.name]
        speedups = [
            each.examples_per_second / one.examples_per_second
            for each, one in zip(samples, found[base.name], strict=True)
        ]
        middle = sorted(range(len(samples)), key=lambda place: samples[place].examples_per_second)
        place = middle[len(middle) // 2]
        by_itself = found[parts[way.name].name][place] if way.name in parts else None
        return Row(way, samples, speedups, parts_of(samples[place], by_itself))

    known = [each.outside for samples in found.values() for each in samples if each.outside is not None]
    return Scaling(
        bench=bench,
        rows=[row(way) for way in ways],
        machine=row(machine) if machine else None,
        cores=len(own_cores()),
        outside=max(known) if known else None,
        shortest=bench.steps * min(each.step for samples in found.values() for each in samples),
    )


def in_turns(bench: Bench, ways: Sequence[Way]) -> dict[str, list[Sample]]:
    """Run all ways, one after the other, and that as often as there are rounds; give it by their names."""
    found: dict[str, list[Sample]] = {way.name: [] for way in ways}
    for number in range(bench.rounds):
        for way in {way.name: way for way in ways}.values():
            sample = run(bench, way)
            found[way.name].append(sample)
            said = f"round {number + 1} of {bench.rounds}: {way.name}"
            _log.info("%s: %.0f examples/s", said, sample.examples_per_second)
    return found


def _part_of(bench: Bench, way: Way) -> Way:
    batch = bench.part(way.workers)
    if batch == bench.batch(1) and bench.replicas == 1:
        return alone(bench, batch)  # which is measured anyway
    own = alone(bench, batch, parts=bench.replicas)
    return own.changed(f"one process, {batch} examples a step")


def _tells_its_time(bench: Bench) -> bool:
    """Say whether the exchange knows what it takes, as the ring does, and TensorFlow's do not."""
    said = bench.settings.config.communication
    is_on_gpus = bool(own_gpus()) and bench.settings.config.strategy.device != "cpu"
    by_ring = said.implementation == "tcp" or (
        said.implementation in (None, "auto") and said.bytes_per_pack is None and not is_on_gpus
    )
    return bench.strategy == "multi_worker_mirrored" and by_ring
