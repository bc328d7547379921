"""Ask a terminal what it can do, also one that somebody closes in the meantime, and print tables."""

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_USUAL = (80, 24)
_WIDTH_OF_TABLES = 160  # in a file or a pipe, which has no width: rich would cut the lines
_DUMB = ("dumb", "unknown")  # as rich has it, which draws the tables of other commands


def moves_its_cursor() -> bool:
    """Return whether TERM names a terminal that can draw a live view again."""
    return os.environ.get("TERM", "").lower() not in _DUMB


def terminal_size(fileno: int | None) -> tuple[int, int]:
    """Return the columns and lines of a terminal; the usual ones where they are not known.

    A terminal whose size is not set reports 0, and one that was closed an error.
    """
    try:
        columns, lines = os.get_terminal_size(fileno) if fileno is not None else _USUAL
    except OSError:
        return _USUAL
    return columns or _USUAL[0], lines or _USUAL[1]


def console_for_tables() -> "Console":
    """Return rich's console on the standard output, which prints text as it is."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else _WIDTH_OF_TABLES
    return Console(highlight=False, markup=False, emoji=False, soft_wrap=True, width=width)


def table_that_fits(console: "Console", names: Sequence[str], rows: Sequence[Sequence[str]]) -> "Table":
    """Return a table whose rows begin with a name; where it is too wide, with a column in place of each row.

    rich would cut the numbers.
    """
    from rich.measure import Measurement

    table = _table(names, rows)
    if Measurement.get(console, console.options.update(max_width=10_000), table).maximum <= console.width:
        return table
    names, *rows = zip(names, *rows, strict=True)
    return _table(names, rows)


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> "Table":
    from rich.box import SIMPLE
    from rich.table import Table

    table = Table(*names, box=SIMPLE)
    for row in rows:
        table.add_row(*row)
    return table
