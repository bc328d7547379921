"""Measure in rounds, and keep what nobody else disturbed."""

import json
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

__all__ = ["alone", "others", "told", "undisturbed"]

_MOST_TIMES = 8  # for each measurement that counts

Found = TypeVar("Found")


def alone(measure: Callable[[], Found], outside: Callable[[Found], float], most: float) -> Found:
    """Measure until others had no more than so much of the cores in between."""
    for _ in range(_MOST_TIMES):
        found = measure()
        if outside(found) <= most:
            return found
        print(f"others took {outside(found):.0%} of a core: once more", flush=True)
    sys.exit(f"disturbed {_MOST_TIMES} times in a row: end what else runs here, or raise --others")


def undisturbed(
    model: str, measures: Sequence[Callable[[], dict[str, float]]], count: int, most_outside: float
) -> list[list[dict[str, float]]]:
    """Measure all ways in turn, so many times; at once again what had others in between."""
    kept = []
    for _ in range(count):
        kept.append([alone(measure, lambda found: found["outside"], most_outside) for measure in measures])
        speeds = " ".join(f"{each['examples']:.0f}" for each in kept[-1])
        print(f"{model}: {speeds} examples/s", flush=True)
    return kept


def told(folder: Path, batch: int) -> dict[str, float]:
    """Average the tasks' figures over the half of their windows in which others disturbed them least.

    Where several train, the examples are those of all a second; the rest is worker 0's.
    """
    tasks = [json.loads(path.read_text()) for path in sorted(folder.glob("found-*.json"))]
    moments = sorted(zip(*tasks, strict=True), key=_outside)
    kept = moments[: (len(moments) + 1) // 2]

    def mean(rank: int, name: str) -> float:
        return statistics.fmean(moment[rank][name] for moment in kept)

    return {
        **{name: mean(0, name) for name in tasks[0][0]},
        "outside": _outside(kept[-1]),
        "examples": sum(batch / mean(rank, "wall") for rank in range(len(tasks))),
    }


def _outside(moment: Sequence[dict[str, float]]) -> float:
    return max(each["outside"] for each in moment)


def others(kept: Sequence[Sequence[dict[str, float]]]) -> str:
    """Describe how far others disturbed the measurements."""
    most = max(each["outside"] for found in kept for each in found)
    return f"Others, and other virtual machines of the host, had {most:.0%} of a core at most."
