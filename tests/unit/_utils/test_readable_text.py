"""How commands print what is wider than a terminal."""

import sys

import pytest

from tfdist._utils.readable_text import beside

LABEL, TEXT = "  ok       memory files   ", "tasks of this machine can pass tensors in memory (memfd)"


def test_a_file_gets_one_line():
    assert beside(LABEL, TEXT) == LABEL + TEXT


@pytest.mark.parametrize(
    ("columns", "lines"),
    [
        (82, [LABEL + TEXT]),
        (80, [LABEL + "tasks of this machine can pass tensors in memory", " " * 26 + "(memfd)"]),
        (60, [LABEL + "tasks of this machine can pass", " " * 26 + "tensors in memory (memfd)"]),
    ],
)
def test_a_terminal_gets_whole_words_below_one_another(monkeypatch, columns, lines):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    assert beside(LABEL, TEXT).splitlines() == lines
