"""Keras callbacks decide alike everywhere, and write on the chief alone."""

import csv

import pytest

from conftest import SETUPS


@pytest.mark.parametrize("strategy", list(SETUPS))
def test_callbacks_decide_and_write(strategy, finished):
    found = finished(strategy)
    writing = found.chief["writing"]

    assert writing["epochs"] == 2  # EarlyStopping
    assert writing["rate"] == pytest.approx(0.1 * 0.5 * 0.5 * 0.5)  # two halvings, and one on the plateau
    rows = list(csv.DictReader(writing["csv"]))
    assert [row["epoch"] for row in rows] == ["0", "1"]
    assert any(name.startswith("best") for name in writing["written"])
    boards = [name for name in writing["written"] if name.startswith("events.out.tfevents")]
    assert len(boards) == 2  # train and validation, of the chief
    assert all(result["writing"]["epochs"] == 2 for result in found.results.values())
