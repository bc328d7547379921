"""Models as people write them compute what one process computes, and every example is seen once per epoch."""

import numpy as np
import pytest
from clusters import IN_STEP, SETUPS, on, run_cluster

AGAIN = ["mirrored"]  # what replicas learn on devices of one process, mirrored workers learn over a network
CASES = [
    f"model_cases.{name}"
    for name in (
        "trained",
        "recovered",
        "shuffled",
        "summed",
        "made",
    )
]
TOLERANCE = {"rel": 1e-10, "abs": 1e-10}  # float64: sums in another order


@pytest.fixture(scope="module")
def alone(cluster_once):
    found = cluster_once("models_alone", "one_device", ["model_cases.keras_itself"])
    return found.chief["model_cases.keras_itself"]


def _check_training(found, alone):
    trained = found.chief["model_cases.trained"]
    for result in found.results.values():  # every process that trains has the same, bit for bit
        assert result["model_cases.trained"] == trained
    if not trained["is_synchronized"]:
        pytest.skip("Keras 2 normalises each replica's own part of a batch")
    assert trained["loss"] == pytest.approx(alone["loss"], **TOLERANCE)
    assert len(trained["weights"]) == len(alone["weights"])
    for ours, kerass in zip(trained["weights"], alone["weights"], strict=True):
        np.testing.assert_allclose(ours, kerass, rtol=1e-10, atol=1e-10)
    for name, values in alone["predicted"].items():
        np.testing.assert_allclose(trained["predicted"][name], values, rtol=1e-9, atol=1e-9)
    assert trained["evaluated"]["mean_mae"] == pytest.approx(alone["error"], rel=1e-9)


@pytest.mark.parametrize("strategy", on(IN_STEP, again=AGAIN))
def test_a_subclassed_model_learns_what_one_process_learns(strategy, finished, alone):
    _check_training(finished(strategy), alone)


@pytest.mark.parametrize("strategy", ["parameter_server"])
def test_fit_works_again_after_a_batch_that_failed_on_a_worker(strategy, finished):
    found = finished(strategy).chief["model_cases.recovered"]

    assert found["failed"]
    assert np.isfinite(found["losses"]).all()


@pytest.mark.parametrize("strategy", on(SETUPS, again=AGAIN))
def test_shuffled_data_are_seen_whole(strategy, finished):
    found = finished(strategy).chief["model_cases.shuffled"]

    assert found["seen"] == [3.0] * 50
    # Where one pipeline reads the data, or one for each worker in step with the others' does.
    is_shared = strategy in ("multi_worker_mirrored", "parameter_server")
    assert ("is shuffled without a seed" in found["refused"]) == is_shared


@pytest.mark.parametrize("strategy", on(IN_STEP, again=AGAIN))
def test_a_sum_over_replicas_counts_each_of_them(strategy, finished):
    found = finished(strategy)

    for result in found.results.values():
        summed = result["model_cases.summed"]
        assert summed["total"] == 4 * summed["replicas"]
        assert summed["counts"] == [
            8 * summed["replicas"],
            summed["replicas"],
        ]  # the second is reset in steps
        assert summed["results"] == [2.0, 5.0]


ONE_PS = "1 ps and 2 workers in step"
MORE = {
    "3 workers": ("multi_worker_mirrored", {"workers": 3}),
    "2 workers of 2 devices": ("multi_worker_mirrored", {"workers": 2, "options": {"logical_devices": 2}}),
    "1 worker of 2 devices": ("multi_worker_mirrored", {"workers": 1, "options": {"logical_devices": 2}}),
    "2 ps and 3 workers": ("parameter_server", {"workers": 3, "ps": 2}),
    ONE_PS: ("parameter_server_sync", {"workers": 2, "ps": 1}),
    "2 ps and 3 workers in step": ("parameter_server_sync", {"workers": 3, "ps": 2}),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(
            each, marks=[pytest.mark.again] if each in ("2 ps and 3 workers", "3 workers", ONE_PS) else []
        )
        for each in MORE
    ],
)
def test_other_clusters_do_the_same(shape, tmp_path, alone):
    strategy, options = MORE[shape]
    is_in_step = strategy in IN_STEP
    cases = ["counting", "random_cases.draws", "model_cases.shuffled"]
    cases += ["model_cases.trained", "model_cases.summed"] if is_in_step else []
    found = run_cluster(tmp_path, strategy, cases, **options)

    counting = found.chief["counting"]
    assert counting["weight"] == 101 * counting["epochs"]
    assert counting["iterations"] == 9 * counting["epochs"]
    assert found.chief["model_cases.shuffled"]["seen"] == [3.0] * 50
    for drawn in found.chief["random_cases.draws"]["first"].values():
        assert len(np.unique(drawn, axis=0)) == len(drawn)
    if is_in_step:
        _check_training(found, alone)
        summed = found.chief["model_cases.summed"]
        assert summed["replicas"] == options["workers"] * options.get("options", {}).get("logical_devices", 1)
        assert summed["total"] == 4 * summed["replicas"]


@pytest.mark.parametrize("strategy", ["multi_worker_mirrored"])
def test_variables_of_every_type_begin_as_the_chiefs(strategy, finished):
    chiefs, others = (result["model_cases.made"] for result in finished(strategy).results.values())

    assert chiefs == others
    assert chiefs["int8"] == "[1, 100, 3]"
    assert chiefs["bfloat16"] == "[1.0, 100.0, 3.0]"
