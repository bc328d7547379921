"""Write what differs between two runs: results, speed, and keys of their configs."""

import json
from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from tfdist.diagnostics.report.event_analysis import mean_speed
from tfdist.diagnostics.report.markup import duration, number, percent, table
from tfdist.diagnostics.report.run_facts import RunFacts
from tfdist.diagnostics.report.sections import state, test_accuracy, title, validation_accuracy

_ABSENT = "—"
_LONGEST_VALUE = 200


def names_of(runs: Sequence[RunFacts]) -> list[str]:
    """Return a name for each run: of its folder, with its place before it where two have the same."""
    names = [Path(facts.place).name or facts.place for facts in runs]
    if len(set(names)) == len(names):
        return names
    wholes = [facts.place for facts in runs]
    if len(set(wholes)) == len(wholes):
        return wholes
    return [f"{whole} ({index + 1})" for index, whole in enumerate(wholes)]


def results_side_by_side(first: RunFacts, second: RunFacts, names: Sequence[str]) -> str:
    """Write the results of two runs, with the second as a ratio of the first or a difference to it."""
    accuracies = [
        _numbers(name, found(first), found(second), percent, _points)
        for name, found in (("test accuracy", test_accuracy), ("validation accuracy", validation_accuracy))
        if found(first) is not None or found(second) is not None
    ]
    rows = [
        _words("state", state(first), state(second)),
        _words("trains", title(first), title(second)),
        _words("strategy", first.strategy, second.strategy),
        _words("tasks", first.tasks, second.tasks),
        _words("versions", _versions(first), _versions(second)),
        *accuracies,
        _numbers("duration", first.seconds, second.seconds, duration, _ratio),
        _numbers("training speed, examples/s", mean_speed(first), mean_speed(second), number, _ratio),
        _words("restarts", str(first.restarts), str(second.restarts)),
    ]
    return table(["", *names, "difference"], rows, label="Results side by side")


def _words(name: str, first: str, second: str) -> list[str]:
    return [name, first or _ABSENT, second or _ABSENT, "same" if first == second else "differs"]


def _numbers(
    name: str,
    first: float | None,
    second: float | None,
    form: Callable[[float], str],
    compare: Callable[[float, float], str],
) -> list[str]:
    shown = [_ABSENT if value is None else form(value) for value in (first, second)]
    return [name, *shown, _ABSENT if first is None or second is None else compare(first, second)]


def _points(first: float, second: float) -> str:
    return f"{100 * (second - first):+.2f} points"


def _ratio(first: float, second: float) -> str:
    return f"x {second / first:.2f}" if first > 0 else _ABSENT


def _versions(facts: RunFacts) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.versions.items())


def config_differences(first: RunFacts, second: RunFacts, names: Sequence[str]) -> str:
    """Write the keys of the configs that differ."""
    if not first.config or not second.config:
        return ""
    left, right = _flat(first.config), _flat(second.config)
    rows = [
        [key, *_where_they_differ(left.get(key, _ABSENT), right.get(key, _ABSENT))]
        for key in left | right
        if left.get(key) != right.get(key)
    ]
    if not rows:
        return "<p>The two configs are equal.</p>"
    text = f"<p>{len(rows)} of {len(left | right)} keys differ.</p>"
    return text + table(["key", *names], rows, label="Keys that differ")


def _where_they_differ(first: str, second: str) -> tuple[str, str]:
    """Return two values, each cut to a length; of long ones with the same beginning, what comes after it."""
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))
    begin = 0 if same < _LONGEST_VALUE else same - _LONGEST_VALUE // 2
    lead = "…" if begin else ""
    return lead + first[begin:][:_LONGEST_VALUE], lead + second[begin:][:_LONGEST_VALUE]


def _flat(config: dict[str, Any]) -> dict[str, str]:
    """Return each value by its dotted key, without the section `engine`, which not all records have."""
    flat: dict[str, str] = {}

    def add(value: object, key: str) -> None:
        if isinstance(value, dict) and value:
            for name, inner in value.items():
                add(inner, f"{key}.{name}" if key else str(name))
        else:
            text = value if isinstance(value, str) else json.dumps(value, default=str)
            flat[key] = text

    add({name: value for name, value in config.items() if name != "engine"}, "")
    return flat
