"""The table of `tfdist verify` on a terminal of 80 columns."""

import io

import pytest
from rich.console import Console

from tfdist.cli import verify
from tfdist.trainer.equivalence import Difference


@pytest.mark.parametrize("worst", [9.2e-14, 1.0])
def test_no_number_is_cut(monkeypatch, worst):
    console = Console(file=io.StringIO(), width=80, soft_wrap=True)
    monkeypatch.setattr(verify, "console_for_tables", lambda: console)
    losses = {"loss": 0.002303102903, "other_loss": 2.303102903}
    difference = Difference(step=10, worst=worst, where="mnist_cnn/dense_1/kernel", allowed=1e-10, **losses)
    assert verify._show([difference], "multi_worker_mirrored") == (worst > 1e-10)
    lines = console.file.getvalue().splitlines()
    row = next(line for line in lines if line.strip().startswith("10"))
    assert row.split()[:4] == ["10", "0.002303102903", "2.303102903", f"{worst:.1e}"]
    assert row.split()[-1] == "1.0e-10"
    assert max(map(len, lines[:-1])) <= 80  # the last one is a sentence
