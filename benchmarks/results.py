"""Write what the benchmarks find, and on which machine, in tables and into docs/results.md."""

import os
import platform
import re
import statistics
import sys
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path

__all__ = ["RESULTS", "machine", "processor", "put", "spread", "table"]

RESULTS = Path(__file__).parents[1] / "docs" / "results.md"


def machine(*packages: str) -> str:
    """Describe what was measured on: cores, processor, Python, TensorFlow and further packages."""
    versions = [f"{each} {metadata.version(each)}" for each in packages]
    told = [f"Python {platform.python_version()}", f"TensorFlow {metadata.version('tensorflow')}", *versions]
    return f"{os.cpu_count()} cores ({processor()}), {', '.join(told)}"


def processor() -> str:
    """Name the processor, and where it can be told its family and model: one name stands for several."""
    told = Path("/proc/cpuinfo")
    lines = told.read_text().splitlines() if told.exists() else []
    found = {name.strip(): value.strip() for name, _, value in (each.partition(":") for each in lines)}
    names = (("model name", ""), ("cpu family", "family "), ("model", "model "))
    parts = [f"{word}{found[name]}" for name, word in names if name in found]
    return ", ".join(parts) or platform.processor() or platform.machine()


def spread(values: Sequence[float], form: str, unit: str = "") -> str:
    """Format the median and, of several values, the range."""
    around = f" ({min(values):{form}} to {max(values):{form}})" if len(values) > 1 else ""
    return f"{statistics.median(values):{form}}{unit}{around}"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Make a table of Markdown; a row that is too short is filled up."""
    lines = [columns, *([*row, *[""] * (len(columns) - len(row))] for row in rows)]
    head, *rest = [f"| {' | '.join(each)} |" for each in lines]
    return "\n".join([head, "|" + "---|" * len(columns), *rest])


def put(name: str, *parts: str, before: str | None = None) -> None:
    """Print parts of text, and put them into the page, between the marks that bear the name.

    Where the page has no such marks yet, they are made before those of another name.
    """
    text = "\n\n".join(parts)
    print(text, flush=True)
    page = RESULTS.read_text()
    marked = f"<!-- {name} -->\n{text}\n<!-- end of {name} -->\n"
    pattern = f"<!-- {re.escape(name)} -->\n.*?<!-- end of {re.escape(name)} -->\n"
    page, found = re.subn(pattern, lambda _: marked, page, flags=re.DOTALL)
    next_mark = f"<!-- {before} -->\n"
    if not found and next_mark in page:
        page = page.replace(next_mark, f"{marked}\n{next_mark}")
    elif not found:
        sys.exit(f"{RESULTS}: expected the marks of {name!r}, received none")
    RESULTS.write_text(page)
