"""Return counts, times, paths and long lines as people read them."""

import os
import shutil
import sys
import textwrap

from tfdist._utils.check_and_expand_paths import current_folder


def count(quantity: int, singular: str, plural: str = "") -> str:
    """Return how many there are of something.

    >>> count(1, "restart"), count(2, "process", "processes")
    ('1 restart', '2 processes')
    """
    return f"{quantity:,} {singular if quantity == 1 else plural or singular + 's'}"


def duration(seconds: float) -> str:
    """Return a time in units that people read.

    >>> duration(125)
    '2 min 5 s'
    """
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours:,} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def size(of_bytes: int) -> str:
    """Return a size of memory or of a disk in the units in which both are sold and limited.

    >>> size(64 << 20), size(3 << 29)
    ('64 MiB', '1.5 GiB')
    """
    gib = of_bytes / (1 << 30)
    return f"{gib:.1f} GiB" if gib >= 1 else f"{1024 * gib:.0f} MiB"


def short_path(path: str | os.PathLike[str]) -> str:
    """Return a path from the current folder if it is in there; otherwise, or for an address, as it is.

    >>> short_path("/no/such/run"), short_path("gs://bucket/run")
    ('/no/such/run', 'gs://bucket/run')
    """
    text = os.fspath(path)
    here = current_folder()
    if "://" in text or here is None or not (here / text).is_relative_to(here):
        return text
    return os.path.relpath(text)


def beside(label: str, text: str) -> str:
    """Return a label and a text; on a terminal, break the text between words, and indent it below itself.

    In a file or a pipe this is one line, for tools that read line by line.
    """
    line = label + text
    if not sys.stdout.isatty():
        return line
    columns = shutil.get_terminal_size().columns
    indent = " " * min(len(label), columns // 2)
    lines = textwrap.wrap(
        line, columns, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(lines)
