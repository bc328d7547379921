"""Compute what the network benchmark says of each way of training, and make its table."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from network_tasks import LINKS
from results import spread

__all__ = ["COLUMNS", "Figures", "Row", "bound", "hidden_share", "row"]

COLUMNS = (
    "link",
    "ms a step",
    "examples/s, of one process of tfdist",
    "tfdist is faster by",
    "MB a step",
    "bound, ms",
    "of the bound",
    "exchange alone, ms",
    "hidden",
)


class Figures(NamedTuple):
    """Record a measurement of a way.

    Attributes:
        wall: The seconds in which each worker trains one batch.
        exchange: The same of a model that has the same weights and computes nothing.
        examples: The examples of all workers, a second.
        bytes: What the link and direction that carried most has carried in a step.
        outside: The share of a core's time that others had.
    """

    wall: float
    exchange: float
    examples: float
    bytes: float
    outside: float


class Row(NamedTuple):
    """Name the measurements that a row is made of.

    Attributes:
        title: The way.
        link: The link's name; empty for one process, which has none.
        own: The way's measurement, in a round.
        alone: That of one process with the same software.
        one: That of one process with tfdist.
        ours: That of tfdist, which the way is compared with; None for this itself.
    """

    title: str
    link: str
    own: str
    alone: str
    one: str
    ours: str | None


def bound(own: Figures, alone: Figures, bits_per_second: float) -> float:
    """Return the least seconds of a step: computing, or the bytes over the link if these take longer."""
    return max(alone.wall, 8 * own.bytes / bits_per_second)


def hidden_share(own: Figures, alone: Figures) -> float:
    """Return the share of the exchange that the backward pass hides.

    Whatever else makes a step longer counts against it, so it may be negative.
    """
    exchange = own.exchange - alone.exchange
    return (alone.wall + exchange - own.wall) / exchange if exchange > 0 else float("nan")


def row(made: Row, kept: Sequence[Mapping[str, Figures]]) -> list[str]:
    """Make the cells of a row out of all rounds."""

    def each(formula: Callable[[Figures, Figures], float], of: str) -> list[float]:
        return [formula(found[made.own], found[of]) for found in kept]

    step = spread(each(lambda own, _: 1000 * own.wall, made.own), ".0f")
    speed = spread(each(lambda own, one: own.examples / one.examples, made.one), ".2f")
    if not made.link:
        return [made.title, "", step, speed]
    link = LINKS[made.link]
    ahead = each(lambda own, ours: ours.examples / own.examples, made.ours) if made.ours else []
    least = each(lambda own, alone: bound(own, alone, link), made.alone)
    over = each(lambda own, alone: own.wall / bound(own, alone, link), made.alone)
    exchange = each(lambda own, alone: own.exchange - alone.exchange, made.alone)
    sent = max(each(lambda own, _: own.bytes, made.own))
    return [
        made.title,
        made.link,
        step,
        speed,
        spread(ahead, ".2f") if ahead else "",
        f"{sent / 1e6:.3f}",
        f"{1000 * statistics.median(least):.0f}",
        spread(over, ".2f"),
        f"{1000 * statistics.median(exchange):.0f}",
        spread(each(hidden_share, made.alone), ".0%"),
    ]
