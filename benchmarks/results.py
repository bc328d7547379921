"""Put the tables that the benchmarks make into docs/results.md."""

import re
import sys
from pathlib import Path

__all__ = ["put"]

RESULTS = Path(__file__).parents[1] / "docs" / "results.md"


def put(name: str, text: str) -> None:
    """Put a text into the page, between the marks that bear its name."""
    page = RESULTS.read_text()
    marks = (f"<!-- {name} -->\n", f"<!-- end of {name} -->\n")
    pattern = re.escape(marks[0]) + ".*?" + re.escape(marks[1])
    page, found = re.subn(pattern, lambda _: f"{marks[0]}{text}\n{marks[1]}", page, flags=re.DOTALL)
    if not found:
        sys.exit(f"{RESULTS}: expected the marks {marks}, received none")
    RESULTS.write_text(page)
