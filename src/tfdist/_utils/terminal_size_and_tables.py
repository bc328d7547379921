"""Ask a terminal what it can do, also one that somebody closes in the meantime, and print tables."""

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

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
