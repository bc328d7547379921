"""Every strategy trains, in real processes, and every process ends by itself with exit status 0."""

import pytest
from clusters import SETUPS

ALL = list(SETUPS)
CASES = ["smoke"]


@pytest.mark.parametrize("strategy", ALL)
def test_every_process_ends_by_itself(strategy, finished):
    assert set(finished(strategy).exit_codes.values()) == {0}


@pytest.mark.parametrize("strategy", ALL)
def test_training_lowers_the_loss(strategy, finished):
    history = finished(strategy).chief["smoke"]["history"]

    assert len(history["loss"]) == len(history["val_loss"]) == 2
    assert history["loss"][-1] < history["loss"][0]
