"""Measure in rounds that nobody else disturbs, and say how far what was measured is apart."""

import statistics
import sys
from collections.abc import Callable, Sequence

__all__ = ["others", "spread", "undisturbed"]

_MOST_ROUNDS = 4  # for each that counts


def undisturbed(
    model: str, measure: Callable[[], list[dict[str, float]]], count: int, most_outside: float
) -> list[list[dict[str, float]]]:
    """Measure all ways in turn, until so many rounds were without others in between."""
    kept: list[list[dict[str, float]]] = []
    for _ in range(_MOST_ROUNDS * count):
        found = measure()
        outside = max(each["outside"] for each in found)
        speeds = " ".join(f"{each['examples']:.0f}" for each in found)
        print(f"{model}: {speeds} examples/s; others took {outside:.0%}", flush=True)
        if outside <= most_outside:
            kept.append(found)
        if len(kept) == count:
            return kept
    sys.exit(f"only {len(kept)} of {_MOST_ROUNDS * count} rounds were undisturbed: end what else runs here")


def spread(values: Sequence[float], form: str) -> str:
    """Give the median and the range."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def others(kept: Sequence[Sequence[dict[str, float]]]) -> str:
    """Say how far others disturbed what was measured."""
    most = max(each["outside"] for found in kept for each in found)
    return f"Others, and other virtual machines of the host, had {most:.0%} of a core at most."
