"""Asynchronous workers keep their data from one pass to the next, as one process does."""

from importlib.metadata import version

import pytest
from pass_cases import BATCH, DATA, EPOCHS, SIZE

CASE = "pass_cases.passes"
CASES = [CASE, "pass_cases.tested"]
STRATEGY = pytest.mark.parametrize("strategy", ["parameter_server"])


def examples_of(batches):
    return sorted(number % 100 for batch in batches for number in batch)


def made_in(epochs):
    """Return the batches of each epoch; their order is that in which workers are ready."""
    return [{tuple(batch) for batch in batches} for batches in epochs]


@STRATEGY
@pytest.mark.parametrize("kind", DATA)
def test_each_pass_has_each_example_once(kind, strategy, finished):
    epochs = finished(strategy).chief[CASE][kind]

    assert len(epochs) == EPOCHS
    for batches in epochs:
        assert examples_of(batches) == list(range(SIZE))


@STRATEGY
@pytest.mark.parametrize("kind", ["shuffled", "of a function", "shuffled and cached"])
def test_each_pass_has_another_order(kind, strategy, finished):
    epochs = finished(strategy).chief[CASE][kind]

    assert all(len(batch) == BATCH for batches in epochs for batch in batches)
    made = made_in(epochs)
    assert made[0] != made[1] != made[2] != made[0]


@STRATEGY
def test_a_cache_is_filled_once(strategy, finished):
    epochs = finished(strategy).chief[CASE]["cached"]

    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(epochs[2])
    assert len({number // 100 for batch in epochs[0] for number in batch}) > 1


@STRATEGY
def test_another_call_continues_with_other_orders(strategy, finished):
    found = finished(strategy).chief[CASE]

    assert made_in(found["of three calls"]) == made_in(found["shuffled"])


@STRATEGY
@pytest.mark.skipif(version("keras") < "3", reason="Keras 2 does not resume in the data")
@pytest.mark.parametrize("kind", ["shuffled", "shuffled and cached"])
def test_a_resumed_run_has_the_orders_of_the_passes_that_are_left(kind, strategy, finished):
    found = finished(strategy).chief[CASE]

    assert made_in(found[f"{kind}, resumed"]) == made_in(found[kind])


@STRATEGY
def test_a_number_of_steps_tests_the_first_batches(strategy, finished):
    assert finished(strategy).chief["pass_cases.tested"] == [0.5] * 8
