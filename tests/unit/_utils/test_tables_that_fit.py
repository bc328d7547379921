"""Tables on a terminal that is too narrow for them."""

import io

import pytest
from rich.console import Console

from tfdist._utils.terminal_size_and_tables import table_that_fits

NAMES = ("trained by", "examples/s", "speed-up", "ms a step", "MB sent")
ROWS = [("one process", "12,387", "1.00", "331.0", ""), ("2 workers", "24,559", "1.98", "228.9", "26.2")]


@pytest.mark.parametrize(("width", "is_turned"), [(80, False), (64, False), (40, True)])
def test_no_number_is_cut(width, is_turned):
    console = Console(file=io.StringIO(), width=width, soft_wrap=True)
    console.print(table_that_fits(console, NAMES, ROWS))
    shown = console.file.getvalue()
    lines = [line.split() for line in shown.splitlines()]
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= width
    assert (["speed-up", "1.00", "1.98"] in lines) is is_turned
    assert (["2", "workers", "24,559", "1.98", "228.9", "26.2"] in lines) is not is_turned
