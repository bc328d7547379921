"""Compute and draw how fast a simulated cluster trains."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfdist._utils.plotting import new_figure, save
from tfdist.simulation.ring import simulate_ring
from tfdist.simulation.servers import simulate_servers
from tfdist.simulation.setup import Setup

_STEPS, _WARM_UP = 25, 0.2  # steps of a worker; the share of them that fills the queues


@dataclass(frozen=True)
class Forecast:
    """The simulated speed of a number of workers.

    Attributes:
        workers: The number of workers.
        examples_per_second: The examples of all workers together.
        speedup: The ratio to one process alone, which exchanges nothing.
        efficiency: The speedup divided by the number of workers.
        bytes_per_second: The bytes on all links, each byte counted once.
        staleness: How many updates of other workers a step's gradients are behind, on average.
        most_stale: The same for the worst step.
        waiting: The share of a worker's time in which it does not compute.
    """

    workers: int
    examples_per_second: float
    speedup: float
    efficiency: float
    bytes_per_second: float
    staleness: float
    most_stale: int
    waiting: float


def forecast(setup: Setup, workers: int, *, steps: int = _STEPS, seed: int = 0) -> Forecast:
    """Simulate some steps of each worker, and return their speed."""
    simulate = simulate_ring if setup.strategy == "multi_worker_mirrored" else simulate_servers
    record = simulate(setup, workers, steps, seed)
    ends = sorted(record.ends)
    # Whole rounds, because synchronous workers end together.
    first, last = max(1, int(_WARM_UP * steps)) * workers, steps * workers
    seconds = ends[last - 1] - ends[first - 1]
    examples = (last - first) / seconds * setup.compute.batch_size
    alone = setup.compute.batch_size / setup.step_seconds
    return Forecast(
        workers=workers,
        examples_per_second=examples,
        speedup=examples / alone,
        efficiency=examples / alone / workers,
        bytes_per_second=record.moved / ends[-1],
        staleness=sum(record.staleness[first:last]) / (last - first),
        most_stale=max(record.staleness),
        waiting=1 - sum(record.computed) / sum(record.until),
    )


def draw(forecasts: Mapping[str, Sequence[Forecast]], path: Path) -> None:
    """Draw speedup, efficiency and bytes over the number of workers, with a line for each strategy."""
    figure = new_figure(13, 4)
    shown = (
        ("speedup", "times one process", 1.0),
        ("efficiency", "of one process each, %", 100.0),
        ("bytes_per_second", "on all links together, GB/s", 1e-9),
    )
    for axes, (name, label, factor) in zip(figure.subplots(1, len(shown)), shown, strict=True):
        for strategy, results in forecasts.items():
            points = [factor * getattr(result, name) for result in results]
            axes.plot([result.workers for result in results], points, marker=".", label=strategy)
        axes.set(
            xscale="log", yscale="linear" if name == "efficiency" else "log", xlabel="workers", ylabel=label
        )
        axes.legend()
    save(figure, path)
