"""Try each change that may make a config faster, and then those that helped together."""

import logging
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from tfdist.benchmark.options_to_try import Candidate
from tfdist.benchmark.run_scenario import run
from tfdist.benchmark.scenarios import Bench, Scenario, of_workers
from tfdist.benchmark.task_measurements import Sample
from tfdist.errors import TfdistError
from tfdist.launcher.outcome import LaunchError
from tfdist.launcher.share_cores_and_gpus import own_cores

_MIN_GAIN = 1.02  # a smaller gain is not worth a line in a config
_UNCHANGED = "the config as it is"
_TOGETHER = "together"
_log = logging.getLogger("tfdist")


@dataclass
class Tried:
    """The effect of one change.

    Attributes:
        name: The name in tables.
        scenario: The scenario with the change.
        candidate: The change; None for no change and for several at once.
        note: What a user should know about it.
        samples: The measurements of each round.
        ratios: The speed relative to the unchanged config, of each round.
        refused: Why the change does not work; empty if it does.
    """

    name: str
    scenario: Scenario
    candidate: Candidate | None = None
    note: str = ""
    samples: list[Sample] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    refused: str = ""

    @property
    def speeds(self) -> list[float]:
        """Return the examples per second of each round."""
        return [sample.examples_per_second for sample in self.samples]

    @property
    def gain(self) -> float:
        """Return the median speed relative to the unchanged config."""
        return statistics.median(self.ratios) if self.ratios else 0.0

    @property
    def helps(self) -> bool:
        """Return whether it was faster in every round, and by enough."""
        return not self.refused and bool(self.ratios) and min(self.ratios) > 1 and self.gain >= _MIN_GAIN


@dataclass(frozen=True)
class Tuning:
    """The effects of all changes.

    Attributes:
        same: Changes that keep the mathematics, after the unchanged config.
        other: Changes of the mathematics.
        yaml: What to put into the config; empty if nothing helps, or no config option does.
        environment: Environment variables to set.
        advice: The same in sentences.
        cores: How many cores there are.
        outside: How many cores other programs kept busy in the worst run; None if that is unknown.
        spread: The range of the unchanged config's speeds, as a share of the median.
        shortest: The measured seconds of the shortest run.
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


def tune(bench: Bench, tries: Sequence[Candidate]) -> Tuning:
    """Measure each change against the unchanged config on its own cluster, then the best ones together."""
    # Pinned only as the config says: comparisons of cluster sizes pin each worker to its own cores.
    scenario = replace(
        of_workers(bench, bench.workers), name=_UNCHANGED, pin=bench.settings.config.launch.pin
    )
    base = Tried(_UNCHANGED, scenario)
    tried = [
        Tried(candidate.name, candidate.applied(scenario), candidate, candidate.note) for candidate in tries
    ]
    _measure(bench, base, tried)
    same = [change for change in tried if change.candidate is not None and change.candidate.keeps]
    best, together = chosen(same), None
    if len(best) > 1:
        together = _tried_together(bench, scenario, best)
        same.append(together)
        if not together.helps or together.gain < best[0].gain:
            best = best[:1]
    samples = [sample for change in (base, *tried) for sample in change.samples]
    helpful = [change.candidate for change in best if change.candidate is not None]
    environment = {name: value for candidate in helpful for name, value in candidate.env.items()}
    lines = yaml_lines([setting for candidate in helpful for setting in candidate.changes])
    return Tuning(
        same=[base, *same],
        other=[change for change in tried if change not in same],
        yaml=lines,
        environment=environment,
        advice=_advice(lines, environment, together, best),
        cores=len(own_cores()),
        outside=max((sample.outside for sample in samples if sample.outside is not None), default=None),
        shortest=bench.steps * min(sample.step for sample in samples),
        spread=(max(base.speeds) - min(base.speeds)) / statistics.median(base.speeds),
    )


def _tried_together(bench: Bench, scenario: Scenario, changes: Sequence[Tried]) -> Tried:
    """Measure several changes at once against the unchanged scenario."""
    changed = scenario
    for change in changes:
        changed = change.candidate.applied(changed) if change.candidate else changed
    together = Tried(_TOGETHER, replace(changed, name=_TOGETHER))
    _measure(bench, Tried(_UNCHANGED, scenario), [together])
    return together


def chosen(tried: Sequence[Tried]) -> list[Tried]:
    """Return the best change of each key among those that help, the best of all first."""
    best_by_key: dict[str, Tried] = {}
    for change in sorted(tried, key=lambda change: -change.gain):
        if change.helps and change.candidate is not None:
            best_by_key.setdefault(change.candidate.key, change)
    return list(best_by_key.values())


def yaml_lines(changes: Sequence[str]) -> str:
    """Return changes that `--set` takes in the form of a config file."""
    nested: dict[str, Any] = {}
    for change in changes:
        dotted, _, text = change.partition("=")
        *sections, key = dotted.split(".")
        place = nested
        for section in sections:
            place = place.setdefault(section, {})
        place[key] = yaml.safe_load(text)
    return yaml.safe_dump(nested, sort_keys=False) if nested else ""


def _measure(bench: Bench, base: Tried, tried: Sequence[Tried]) -> None:
    """Run all changes in turns; a change that fails is not run again."""
    for number in range(bench.rounds):
        base.samples.append(run(bench, base.scenario))
        _log_speed(bench, number, base)
        for change in tried:
            if change.refused:
                continue
            try:
                sample = run(bench, change.scenario)
            except TfdistError as error:
                if isinstance(error, LaunchError) and not any(exit.failed for exit in error.exits):
                    raise  # a user has stopped it
                change.refused = f"does not work: {error}"
                _log.info("%s %s", change.name, change.refused)
                continue
            change.samples.append(sample)
            change.ratios.append(sample.examples_per_second / base.samples[-1].examples_per_second)
            _log_speed(bench, number, change)
    base.ratios = [1.0] * len(base.samples)


def _log_speed(bench: Bench, number: int, tried: Tried) -> None:
    speed = tried.samples[-1].examples_per_second
    _log.info("round %d of %d: %s: %.0f examples/s", number + 1, bench.rounds, tried.name, speed)


def _advice(
    lines: str, environment: Mapping[str, str], together: Tried | None, best: Sequence[Tried]
) -> list[str]:
    if not best:
        return ["No change that keeps the mathematics makes this config faster here."]
    gain = together.gain if together is not None and len(best) > 1 else best[0].gain
    lines_of_text = [f"{gain:.2f} times as fast, with the same mathematics:"]
    if lines:
        lines_of_text += ["Put into the config:", lines.rstrip()]
    if environment:
        lines_of_text += [
            "Put into the environment:",
            " ".join(f"{name}={value}" for name, value in environment.items()),
        ]
    return lines_of_text
