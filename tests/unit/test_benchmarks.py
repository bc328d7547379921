"""What the benchmarks write into docs/results.md."""

import os
import platform
import re
import sys
from importlib import metadata
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import results  # noqa: E402


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "results.md"
    path.write_text(
        "Before.\n\n<!-- a -->\nold\n<!-- end of a -->\n\n<!-- a b -->\nkept\n<!-- end of a b -->\n"
    )
    monkeypatch.setattr(results, "RESULTS", path)
    return path


def test_only_what_is_between_the_marks_is_replaced(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results.put("a", "New: \\1.", "| table |")
    marked = "<!-- a -->\nNew: \\1.\n\n| table |\n<!-- end of a -->\n"
    assert page.read_text() == f"Before.\n\n{marked}\n<!-- a b -->\nkept\n<!-- end of a b -->\n"
    assert capsys.readouterr().out == "New: \\1.\n\n| table |\n"


def test_a_page_without_the_marks_is_left_alone(page: Path) -> None:
    before = page.read_text()
    with pytest.raises(SystemExit, match="expected the marks"):
        results.put("b", "text")
    assert page.read_text() == before


def test_the_median_is_in_the_middle_of_the_range() -> None:
    assert results.spread([3.0, 1.0, 2.0, 10.0], ".1f", " s") == "2.5 s (1.0 to 10.0)"


def test_one_value_has_no_range() -> None:
    assert results.spread([0.8997], ".2%") == "89.97%"


def test_a_short_row_is_filled_up() -> None:
    rows = [["ours", "1", "2"], ["Horovod, not installed"]]
    assert results.table(["", "a", "b"], rows).splitlines() == [
        "|  | a | b |",
        "|---|---|---|",
        "| ours | 1 | 2 |",
        "| Horovod, not installed |  |  |",
    ]


def test_the_machine_is_this_one() -> None:
    told = results.machine("numpy")
    assert told == (
        f"{os.cpu_count()} cores ({results.processor()}), Python {platform.python_version()}, TensorFlow"
        f" {metadata.version('tensorflow')}, numpy {metadata.version('numpy')}"
    )


def test_the_processor_is_named() -> None:
    name = results.processor()
    assert name == name.strip() != ""
    told = Path("/proc/cpuinfo")
    if told.exists() and "model name" in told.read_text():
        model, _, number = name.partition(", family ")
        assert f": {model}\n" in told.read_text()
        assert number or "cpu family" not in told.read_text()  # one name stands for several processors


def test_every_mark_of_the_page_has_its_end_and_a_benchmark_that_writes_it() -> None:
    text = results.RESULTS.read_text()
    begins = re.findall(r"^<!-- (?!end of )(.+) -->$", text, flags=re.MULTILINE)
    assert begins
    assert begins == re.findall(r"^<!-- end of (.+) -->$", text, flags=re.MULTILINE)
    written = re.findall(
        r"""put\(\s*f?"([^"{]+)""", "".join(path.read_text() for path in BENCHMARKS.glob("*.py"))
    )
    assert {name for name in begins if not any(name.startswith(each) for each in written)} == set()
