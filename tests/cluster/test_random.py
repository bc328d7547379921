"""Replicas, and steps, draw different random numbers; and the same seed draws the same again."""

import numpy as np
import pytest
from clusters import IN_STEP, SETUPS, on

AGAIN = ["mirrored"]  # mirrored workers have as many replicas, and draw on more than one task
CASES = ["random_cases.draws"]


@pytest.mark.parametrize("layer", ["dropout", "translation", "noise"])
@pytest.mark.parametrize("strategy", on(SETUPS, again=AGAIN))
def test_no_two_examples_get_the_same_numbers(strategy, layer, finished):
    drawn = np.array(finished(strategy).chief["random_cases.draws"]["first"][layer])

    assert drawn.any(axis=1).all()
    assert len(np.unique(drawn, axis=0)) == len(drawn)  # in a replica, on other replicas, and in other steps


@pytest.mark.parametrize("strategy", on(IN_STEP, again=AGAIN))
def test_the_same_seed_draws_the_same_on_every_task(strategy, finished):
    found = finished(strategy)

    for result in found.results.values():
        draws = result["random_cases.draws"]
        assert draws["first"] == draws["again"] == found.chief["random_cases.draws"]["first"]
