"""Write pieces of HTML in which every text is escaped, and numbers as people read them."""

import html
import math
from collections.abc import Iterable, Sequence
from datetime import datetime

from tfdist._utils import readable_text

_LONGEST_DURATION = 1e12  # seconds


def escape(value: object) -> str:
    """Return a value as text that is safe in HTML, in an attribute too."""
    text = str(value).encode("utf-8", "backslashreplace").decode()  # names may have lone surrogates
    return html.escape(
        "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
    )


def section(title: str, *parts: str) -> str:
    """Return a section with a heading; empty if all of its parts are."""
    content = "".join(parts)
    if not content:
        return ""
    name = slug(title)
    return f'<section aria-labelledby="{name}"><h2 id="{name}">{escape(title)}</h2>{content}</section>\n'


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, label: str) -> str:
    """Return a table; the first column names the row. Cells are texts, not HTML."""
    top = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    body = "".join(_row(row) for row in rows)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}">'
        f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _row(cells: Sequence[str]) -> str:
    rest = "".join(f"<td>{_breakable(cell)}</td>" for cell in cells[1:])
    return f'<tr><th scope="row">{_breakable(cells[0])}</th>{rest}</tr>'


def details(summary: str, content: str) -> str:
    """Return content that a click or a key shows."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def definitions(pairs: Iterable[tuple[str, str]]) -> str:
    """Return names with their values; pairs without a value are left out. Both are texts, not HTML."""
    rows = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{_breakable(value)}</dd></div>" for name, value in pairs if value
    )
    return f"<dl>{rows}</dl>" if rows else ""


def _breakable(text: str) -> str:
    """Return a text as HTML that may break after an underscore."""
    return escape(text).replace("_", "_<wbr>")


def slug(text: str) -> str:
    """Return a text as a name for an anchor."""
    return "-".join("".join(c if c.isalnum() else " " for c in text.lower()).split())


def number(value: float) -> str:
    """Return a number in at most four digits, or with all its digits before the point.

    >>> number(1234.5), number(0.12345), number(3)
    ('1,234', '0.1235', '3')
    """
    if not math.isfinite(value):
        return str(value)
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e12 else f"{value:.4g}"


def percent(part: float) -> str:
    """Return a part of 1 in percent.

    >>> percent(0.94994), percent(0.9)
    ('94.99 %', '90 %')
    """
    return f"{round(100 * part, 2):g} %"


def duration(seconds: float) -> str:
    """Return a time in units that people read; a time that no clock can have taken is unknown."""
    if not 0 <= seconds < _LONGEST_DURATION:
        return "unknown"
    return f"{seconds:.2g} s" if seconds < 10 else readable_text.duration(seconds)


def moment(time: float) -> str:
    """Return the date and time of a number of seconds since 1970, in this machine's time zone."""
    try:
        return datetime.fromtimestamp(time).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
    except (OverflowError, ValueError, OSError):  # beyond the calendar
        return "unknown"
