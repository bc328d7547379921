"""Ask a terminal what it can do, also one that somebody closes in the meantime."""

import os

_USUAL = (80, 24)
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
