"""What optimizers branch on, what losses are divided by, and steps of a model's own: as Keras does it alone."""

import pytest
import tensorflow as tf
from clusters import IN_STEP, SETUPS, run_cluster

KERAS_2 = tf.keras.__version__ < "3"
CASES = [
    *(f"shared_cases.{name}" for name in ("at_once", "scaled")),
    *(f"own_cases.{name}" for name in ("refused", *(("steps", "steps_by_keras") if KERAS_2 else ()))),
]
only_keras_3 = pytest.mark.skipif(
    KERAS_2, reason="Keras 2 has no such optimizers, or has them in another way"
)
# float64 has 16 digits. What is compared went through some 20 steps and is of the order of one.
CLOSE = {"rel": 1e-10, "abs": 1e-10}
CLOSE_IN_FLOAT32 = {"rel": 1e-5, "abs": 1e-5}


@pytest.fixture(scope="session")
def keras_at_once(cluster_once):
    name = "shared_cases.at_once_by_keras"
    return cluster_once("keras_at_once", "one_device", [name]).chief[name]


@pytest.fixture(scope="session")
def keras_each_alone(cluster_once):
    name = "shared_cases.each_alone_by_keras"
    return cluster_once("keras_each_alone", "one_device", [name]).chief[name]


def check(ours, kerass):
    for step, mine in ours["steps"].items():
        its = kerass["steps"][step]
        assert mine["iterations"] == its["iterations"], f"step {step}"
        assert mine["loss"] == pytest.approx(its["loss"], **CLOSE), f"step {step}"
        assert mine["weights"] == pytest.approx(its["weights"], **CLOSE), f"step {step}"
    assert ours["optimizer"] == pytest.approx(kerass["optimizer"], **CLOSE)
    for part in ("history", "evaluated"):
        # Those of several outputs Keras counts by the batch, not by its examples.
        known = {name: value for name, value in kerass[part].items() if not name.startswith("out")}
        for name, value in known.items():
            assert ours[part][name] == pytest.approx(value, **CLOSE), name


@only_keras_3
@pytest.mark.parametrize("strategy", IN_STEP)
def test_scaling_accumulating_and_overwriting_are_those_of_one_process(strategy, finished, keras_at_once):
    ours, kerass = finished(strategy).chief["shared_cases.at_once"]["all"], keras_at_once["all"]

    check(ours, kerass)
    # In each epoch of 9 steps one overflows, on one replica; of two steps that count one changes the weights.
    assert max(each["iterations"] for each in ours["steps"].values()) == (2 * 9 - 2) // 2


@only_keras_3
@pytest.mark.parametrize("strategy", SETUPS)
def test_a_step_that_overflows_in_float16_is_left_out(strategy, finished):
    found = finished(strategy).chief["shared_cases.scaled"]

    assert found == {"weight": 101 - 12, "scale": 512.0, "iterations": 8, "losses": 1}


@pytest.mark.slow
@only_keras_3
@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param("mirrored", marks=pytest.mark.again),
        "multi_worker_mirrored",
        pytest.param("parameter_server_sync", marks=pytest.mark.again),
    ],
)
def test_each_option_and_each_loss_is_that_of_one_process(strategy, tmp_path, keras_each_alone):
    case = "shared_cases.each_alone"
    ours = run_cluster(tmp_path, strategy, [case], **SETUPS[strategy]).chief[case]

    assert set(ours) == set(keras_each_alone)
    for each, kerass in keras_each_alone.items():
        check(ours[each], kerass)


@pytest.mark.slow
@only_keras_3
@pytest.mark.parametrize(
    "strategy", [pytest.param("mirrored", marks=pytest.mark.again), "multi_worker_mirrored"]
)
def test_xla_computes_the_same(strategy, tmp_path):
    case = "own_cases.compiled"
    found = run_cluster(tmp_path, strategy, [case], **SETUPS[strategy]).chief[case]

    assert found["jit"] == pytest.approx(found["plain"], **CLOSE_IN_FLOAT32)


@pytest.mark.skipif(not KERAS_2, reason="with Keras 3 the numbers are those of one process")
@pytest.mark.parametrize("name", ["own", "two"])
@pytest.mark.parametrize("strategy", ["mirrored"])
def test_a_step_of_ones_own_is_run_as_keras_runs_it(strategy, name, finished):
    found = finished(strategy).chief

    check_own(found["own_cases.steps"][name], found["own_cases.steps_by_keras"][name])


def check_own(ours, kerass):
    assert set(ours["history"]) == set(kerass["history"])
    for key, values in kerass["history"].items():
        assert ours["history"][key] == pytest.approx(values, **CLOSE_IN_FLOAT32), key
    assert flat(ours["weights"]) == pytest.approx(flat(kerass["weights"]), **CLOSE_IN_FLOAT32)


@pytest.mark.parametrize("strategy", ["parameter_server", *(["parameter_server_sync"] if KERAS_2 else [])])
def test_what_servers_cannot_do_is_refused(strategy, finished):
    found = finished(strategy).chief["own_cases.refused"]

    assert ("overrides train_step" in found["own"]) == KERAS_2
    if not KERAS_2:
        assert "has gradient_accumulation_steps, which counts steps" in found["accumulation"]
        assert "has ema_overwrite_frequency, which counts steps" in found["overwriting"]


def flat(value):
    return [leaf for each in value for leaf in flat(each)] if isinstance(value, list) else [value]
