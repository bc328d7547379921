"""What must be so to the last digit, under every strategy, with replicas whose parts are not alike."""

from importlib.metadata import version

import pytest
from clusters import IN_STEP, SETUPS

ALL = list(SETUPS)
OPTIMIZERS = ["sgd", "adam", "clipped", *(["legacy"] if version("keras") < "3" else [])]
COMPARED_WITH = "one_device"
CASES = ["smoke", "counting", "from_function", "custom_loop", *(f"equivalent_{each}" for each in OPTIMIZERS)]
EXAMPLES, STEPS_PER_EPOCH = 101, 9


@pytest.mark.parametrize("strategy", ALL)
def test_every_example_counts_once(strategy, finished):
    counting = finished(strategy).chief["counting"]

    assert counting["weight"] == EXAMPLES * counting["epochs"]


@pytest.mark.parametrize("strategy", ALL)
def test_iterations_are_the_steps(strategy, finished):
    chief = finished(strategy).chief

    assert chief["counting"]["iterations"] == STEPS_PER_EPOCH * chief["counting"]["epochs"]
    assert chief["smoke"]["iterations"] == STEPS_PER_EPOCH * 2


@pytest.mark.parametrize("strategy", ALL)
def test_evaluation_and_prediction_are_those_of_the_whole_data(strategy, finished):
    smoke = finished(strategy).chief["smoke"]

    assert smoke["predicted_as_called"]
    for name, error in smoke["errors"].items():
        assert smoke["history"][f"val_{name}"][-1] == pytest.approx(error, rel=1e-5)


@pytest.mark.parametrize("strategy", ALL)
def test_parts_of_different_sizes_are_seen_whole(strategy, finished):
    found = finished(strategy).chief["from_function"]
    pipelines = 2 if strategy in ("multi_worker_mirrored", "parameter_server") else 1
    parts = [len(range(index, EXAMPLES, pipelines)) for index in range(pipelines)]

    assert found["examples"] == [parts[0] // 2 + sum(parts[1:])] * 3
    assert found["examples of outer data"] == [EXAMPLES]


@pytest.mark.parametrize("strategy", IN_STEP)
def test_replicas_agree_on_moving_averages(strategy, finished):
    found = finished(strategy)

    for result in found.results.values():
        assert all(copy == found.chief["smoke"]["moving_mean"][0] for copy in result["smoke"]["moving_mean"])
        assert result["smoke"]["weights"] == found.chief["smoke"]["weights"]
        assert result["from_function"] == found.chief["from_function"]


@pytest.mark.parametrize("strategy", IN_STEP)
def test_a_loop_of_ones_own_may_write_variables_in_a_replica(strategy, finished):
    found = finished(strategy)

    copies = [copy for result in found.results.values() for copy in result["custom_loop"]["moving"]]
    assert all(copy == copies[0] for copy in copies)
    assert any(value != 0 for value in copies[0])
    assert found.chief["custom_loop"]["steps"] == 1


# float64 has 16 digits; sums in another order over some 20 steps leave more than 10 of them alike.
TOLERANCE = {"rel": 1e-10, "abs": 1e-10}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("strategy", IN_STEP)
def test_replicas_do_what_one_process_does(strategy, optimizer, finished, keras_itself):
    ours, kerass = finished(strategy).chief[f"equivalent_{optimizer}"], keras_itself[optimizer]

    assert len(ours["losses"]) == len(kerass["losses"]) == 2 * STEPS_PER_EPOCH
    assert ours["losses"] == pytest.approx(kerass["losses"], **TOLERANCE)
    for step, (our_weights, keras_weights) in enumerate(zip(ours["weights"], kerass["weights"], strict=True)):
        for mine, its in zip(_flat(our_weights), _flat(keras_weights), strict=True):
            assert mine == pytest.approx(its, **TOLERANCE), f"weights after step {step}"
    for name in ("loss", "a_mae", "b_mse"):
        assert ours["history"][name] == pytest.approx(kerass["history"][name], **TOLERANCE)
    for name, value in kerass.get("evaluated", {}).items():
        if name in ("loss", "a_mae", "b_mse"):
            assert ours["evaluated"][name] == pytest.approx(value, **TOLERANCE)


@pytest.mark.parametrize("strategy", IN_STEP)
def test_losses_of_several_outputs_weigh_every_example_alike(strategy, finished):
    # Keras 3 counts each batch as one in them where batches differ in size, so one process of ours is the measure.
    ours, alone = (finished(each).chief["equivalent_sgd"]["evaluated"] for each in (strategy, "one_device"))

    assert ours == pytest.approx(alone, **TOLERANCE)


def _flat(value):
    return [leaf for each in value for leaf in _flat(each)] if isinstance(value, list) else [value]
