"""Choose the charts of a page: loss, accuracy and speed of one run, or of two in the same charts."""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from tfdist.diagnostics.report.event_analysis import (
    Points,
    evaluations,
    marks,
    reports_speed,
    speed_curve,
    step_times,
    test_curve,
    training_curve,
)
from tfdist.diagnostics.report.markup import percent
from tfdist.diagnostics.report.run_facts import RunFacts
from tfdist.diagnostics.report.svg_charts import Band, Chart, Mark, Series, draw_chart
from tfdist.launcher.run_events import EpochEnded

_MOST_TASKS = 6  # that a chart shows one by one
_MOST_METRICS = 6
_UNITS = ((3 * 3600.0, 3600.0, "hours"), (180.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))


def learning_charts(runs: Sequence[RunFacts], names: Sequence[str]) -> str:
    """Draw loss and test results over the steps, or over the epochs of `fit`."""
    accuracy = _steps("Accuracy", runs, names, most=1.0, format_y=percent)
    charts = [_steps("Loss", runs, names), accuracy, *_epochs(runs, names)]
    return "".join(map(draw_chart, charts))


def _steps(title: str, runs: Sequence[RunFacts], names: Sequence[str], **options: Any) -> Chart:
    """Return the chart of the loss or the accuracy: its values in training and in tests, over the steps."""
    metric, series = title.lower(), []
    for index, facts in enumerate(runs):
        curves = {"training": training_curve(facts, metric), "test": test_curve(facts, metric)}
        for offset, (of, points) in enumerate(curves.items()):
            name = f"{_prefix(runs, names, index)}{of}"
            series.append(Series(name, points, index + 2 * offset))
    return Chart(title, "step", metric, series, **options)


def _epochs(runs: Sequence[RunFacts], names: Sequence[str]) -> list[Chart]:
    """Return a chart for each metric of `fit`, with its values on training and validation data."""
    ended = [facts.all(EpochEnded) for facts in runs]
    metrics = dict.fromkeys(
        name.removeprefix("val_") for events in ended for event in events for name in event.logs
    )
    charts = []
    for metric in list(metrics)[:_MOST_METRICS]:
        series = []
        for index, events in enumerate(ended):
            for offset, (name, of) in enumerate(((metric, "training"), (f"val_{metric}", "validation"))):
                points = [
                    (event.epoch + 1, value)
                    for event in events
                    if (value := event.logs.get(name)) is not None
                ]
                series.append(Series(f"{_prefix(runs, names, index)}{of}", points, index + 2 * offset))
        charts.append(Chart(f"{metric} of each epoch", "epoch", metric, series))
    return charts


def speed_charts(runs: Sequence[RunFacts], names: Sequence[str]) -> str:
    """Draw the speed of the cluster and the time of a step over the time of the run, with what happened."""
    longest = max(facts.seconds for facts in runs)
    _, size, unit = next(row for row in _UNITS if longest >= row[0])

    def now(seconds: float) -> float:
        return seconds / size

    are_examples = any(map(reports_speed, runs))  # another run's steps per second are no examples
    happened, bands = _happened(runs, names, now)
    speeds = [
        Series(names[index] if len(runs) > 1 else "all tasks", speed_curve(facts, now), index)
        for index, facts in enumerate(runs)
        if reports_speed(facts) == are_examples
    ]
    of_what = "examples/s" if are_examples else "steps/s"
    steps = _step_series(runs, names, now)
    charts = [
        Chart("Throughput of the cluster", unit, of_what, speeds, happened, bands, from_zero=True),
        Chart("Computing time of a step", unit, "ms", steps, happened, bands, from_zero=True),
    ]
    return "".join(map(draw_chart, charts))


def _happened(
    runs: Sequence[RunFacts], names: Sequence[str], now: Callable[[float], float]
) -> tuple[list[Mark], list[Band]]:
    """Return what the charts mark; of two runs only faults and restarts: more would hide the lines."""
    found = [
        Mark(now(mark.x), mark.kind, f"{_prefix(runs, names, index)}{mark.text}")
        for index, facts in enumerate(runs)
        for mark in marks(facts)
        if len(runs) == 1 or mark.kind != "checkpoint"
    ]
    bands = evaluations(runs[0]) if len(runs) == 1 else []
    return found, [Band(now(band.begin), now(band.end), band.text) for band in bands]


def _step_series(
    runs: Sequence[RunFacts], names: Sequence[str], now: Callable[[float], float]
) -> list[Series]:
    curves = [step_times(facts, now) for facts in runs]
    if len(runs) == 1 and len(curves[0]) <= _MOST_TASKS:
        lines = curves[0]
    elif len(runs) == 1:
        lines = {
            "slowest task": _over_tasks(curves[0], max),
            "median task": _over_tasks(curves[0], statistics.median),
            "fastest task": _over_tasks(curves[0], min),
        }
    else:
        each_median = (_over_tasks(curve, statistics.median) for curve in curves)
        lines = {f"{name}, median task": points for name, points in zip(names, each_median, strict=True)}
    return [Series(name, points, style) for style, (name, points) in enumerate(lines.items())]


def _over_tasks(curves: dict[str, Points], choose: Callable[[list[float]], float]) -> Points:
    """Return one curve for many tasks, which were measured at the same moments."""
    at: dict[float, list[float]] = {}
    for points in curves.values():
        for time, taken in points:
            at.setdefault(time, []).append(taken)
    return [(time, choose(values)) for time, values in sorted(at.items())]


def _prefix(runs: Sequence[RunFacts], names: Sequence[str], index: int) -> str:
    return f"{names[index]}: " if len(runs) > 1 else ""
