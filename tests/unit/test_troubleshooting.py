"""The page of errors by symptom quotes lines that tfdist prints, and names tests that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = [
    (line, test)
    for line, test in re.findall(
        r"^\| `(.+?)` \| .+ \| `(\S+)` \|$", (ROOT / "docs/troubleshooting.md").read_text(), re.MULTILINE
    )
]


def test_the_page_has_rows():
    assert len(ROWS) > 20


@pytest.mark.parametrize("line", [line for line, _ in ROWS])
def test_tfdist_prints_the_line(line):
    # Python joins adjacent texts, in which a value stands in braces where the page has …
    code = "\n".join(path.read_text() for path in (ROOT / "src/tfdist").rglob("*.py"))
    joined = re.sub(r'"\s*\n?\s*f?"', "", code)
    for part in filter(None, (part.strip(" ,()") for part in line.split("…"))):
        assert part in joined, part


@pytest.mark.parametrize("test", sorted({test for _, test in ROWS}))
def test_a_test_reproduces_it(test):
    path, _, name = test.partition("::")
    text = (ROOT / "tests" / path).read_text()
    assert not name or f"def {name}(" in text
