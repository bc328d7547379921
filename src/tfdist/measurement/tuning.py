"""Try what may make a config faster, each by itself and then together what helped."""

import logging
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from tfdist.errors import TfdistError
from tfdist.launcher import LaunchError, own_cores
from tfdist.measurement.levers import Lever
from tfdist.measurement.records import Sample
from tfdist.measurement.ways import Bench, Way, of_workers, run

__all__ = ["Tried", "Tuning", "chosen", "tune", "yaml_lines"]

_LEAST_GAIN = 1.02  # what brings less is not worth a line in a config
_AS_IT_IS = "the config as it is"
_TOGETHER = "together"
_log = logging.getLogger("tfdist")


@dataclass
class Tried:
    """Hold what one change brings.

    Attributes:
        name: What people call it.
        way: The way of training with it.
        lever: What is changed; None where nothing or more than one thing is.
        note: What a user should know of it.
        samples: What each round has measured.
        ratios: Of each round, how many times as fast as the config as it is.
        refused: Why it cannot be, if so.
    """

    name: str
    way: Way
    lever: Lever | None = None
    note: str = ""
    samples: list[Sample] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    refused: str = ""

    @property
    def speeds(self) -> list[float]:
        """Give the examples per second of each round."""
        return [each.examples_per_second for each in self.samples]

    @property
    def gain(self) -> float:
        """Give how many times as fast as the config as it is."""
        return statistics.median(self.ratios) if self.ratios else 0.0

    @property
    def helps(self) -> bool:
        """Say whether it was faster in every round, and by enough."""
        return not self.refused and bool(self.ratios) and min(self.ratios) > 1 and self.gain >= _LEAST_GAIN


@dataclass(frozen=True)
class Tuning:
    """Hold what was tried.

    Attributes:
        same: What keeps the mathematics, the config as it is first.
        other: What changes what is computed.
        yaml: What to put into the config; empty where nothing helps, or no config says it.
        environment: What to put into the environment besides.
        advice: The same in sentences.
        cores: How many cores there are.
        outside: How many of them others kept busy, in the worst run; None where that is not known.
        spread: How far the rounds of the config as it is are apart, as a share.
        shortest: The seconds that the shortest run was measured for.
    """

    same: Sequence[Tried]
    other: Sequence[Tried]
    yaml: str
    environment: Mapping[str, str]
    advice: Sequence[str]
    cores: int
    outside: float | None
    spread: float
    shortest: float


def tune(bench: Bench, tries: Sequence[Lever]) -> Tuning:
    """Measure each change against the config as it is, on its own cluster, and then together what helped."""
    # As the config says it: without the cores of its own that each worker gets where sizes are compared.
    way = replace(of_workers(bench, bench.workers), name=_AS_IT_IS, pin=bench.settings.config.launch.pin)
    base = Tried(_AS_IT_IS, way)
    tried = [Tried(each.name, each.applied(way), each, each.note) for each in tries]
    _try(bench, base, tried)
    same = [each for each in tried if each.lever is not None and each.lever.keeps]
    best = chosen(same)
    if len(best) > 1:
        together = way
        for each in best:
            together = each.lever.applied(together) if each.lever else together
        both, again = Tried(_TOGETHER, replace(together, name=_TOGETHER)), Tried(_AS_IT_IS, way)
        _try(bench, again, [both])
        same.append(both)
        if not both.helps or both.gain < best[0].gain:
            best = best[:1]
    samples = [sample for each in (base, *tried) for sample in each.samples]
    known = [each.outside for each in samples if each.outside is not None]
    taken = [each.lever for each in best if each.lever is not None]
    environment = {name: value for each in taken for name, value in each.env.items()}
    lines = yaml_lines([change for each in taken for change in each.changes])
    return Tuning(
        same=[base, *same],
        other=[each for each in tried if each not in same],
        yaml=lines,
        environment=environment,
        advice=_advice(
            lines, environment, next((each for each in same if each.name == _TOGETHER), None), best
        ),
        cores=len(own_cores()),
        outside=max(known) if known else None,
        shortest=bench.steps * min(each.step for each in samples),
        spread=(max(base.speeds) - min(base.speeds)) / statistics.median(base.speeds),
    )


def chosen(tried: Sequence[Tried]) -> list[Tried]:
    """Choose what helps, of each key the best, and the best of all first."""
    found: dict[str, Tried] = {}
    for each in sorted(tried, key=lambda each: -each.gain):
        if each.helps and each.lever is not None:
            found.setdefault(each.lever.key, each)
    return list(found.values())


def yaml_lines(changes: Sequence[str]) -> str:
    """Write what `--set` would change as a config file has it."""
    nested: dict[str, Any] = {}
    for change in changes:
        dotted, _, text = change.partition("=")
        *sections, key = dotted.split(".")
        place = nested
        for section in sections:
            place = place.setdefault(section, {})
        place[key] = yaml.safe_load(text)
    return yaml.safe_dump(nested, sort_keys=False) if nested else ""


def _try(bench: Bench, base: Tried, tried: Sequence[Tried]) -> None:
    """Run all in turns; what fails is not tried again."""
    for number in range(bench.rounds):
        base.samples.append(run(bench, base.way))
        _tell(bench, number, base)
        for each in tried:
            if each.refused:
                continue
            try:
                sample = run(bench, each.way)
            except TfdistError as error:
                if isinstance(error, LaunchError) and not any(exit.failed for exit in error.exits):
                    raise  # somebody has stopped it
                each.refused = f"cannot be: {error}"
                _log.info("%s %s", each.name, each.refused)
                continue
            each.samples.append(sample)
            each.ratios.append(sample.examples_per_second / base.samples[-1].examples_per_second)
            _tell(bench, number, each)
    base.ratios = [1.0] * len(base.samples)


def _tell(bench: Bench, number: int, tried: Tried) -> None:
    speed = tried.samples[-1].examples_per_second
    _log.info("round %d of %d: %s: %.0f examples/s", number + 1, bench.rounds, tried.name, speed)


def _advice(
    lines: str, environment: Mapping[str, str], together: Tried | None, best: Sequence[Tried]
) -> list[str]:
    if not best:
        return ["Nothing that keeps the mathematics makes this config faster here."]
    gain = together.gain if together is not None and len(best) > 1 else best[0].gain
    said = [f"{gain:.2f} times as fast, with the same mathematics:"]
    if lines:
        said += ["Put into the config:", lines.rstrip()]
    if environment:
        said += [
            "Put into the environment:",
            " ".join(f"{name}={value}" for name, value in environment.items()),
        ]
    return said
