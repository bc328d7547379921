"""Test models that override train_step: under every strategy, the numbers are those of one process."""

import numpy as np
import pytest
import tensorflow as tf
from cases import EXAMPLES
from clusters import IN_STEP, on

CASES = [f"custom_step_cases.{name}" for name in ("trained", "refused")]
MODELS = ["compiled", "gan", "towers", "clipped", "accumulated"]
# float64 has 16 digits. What is compared went through 18 steps and is of the order of one.
CLOSE = {"rel": 1e-9, "abs": 1e-9}

pytestmark = pytest.mark.skipif(
    tf.keras.__version__ < "3", reason="a custom step of Keras 2 is run as Keras's own fit runs it"
)


@pytest.fixture(scope="session")
def expected(cluster_once):
    name = "custom_step_cases.trained_by_keras"
    return cluster_once("custom_steps_by_keras", "one_device", [name]).chief[name]


@pytest.mark.parametrize("model", MODELS)
# One device runs the model's method as it is, as tests/unit/training/test_fit.py proves; tests/unit/training/keras/steps
# proves several devices.
@pytest.mark.parametrize("strategy", on(IN_STEP, again=IN_STEP[:3]))
def test_gives_the_numbers_of_one_process(strategy, model, finished, expected):
    found, kerass = finished(strategy).chief["custom_step_cases.trained"][model], expected[model]

    assert isinstance(found, dict), found
    assert found["iterations"] == kerass["iterations"]
    assert set(found["history"]) == set(kerass["history"])
    for name, values in kerass["history"].items():
        assert found["history"][name] == pytest.approx(values, **CLOSE), name
    for ours, value in zip(found["weights"], kerass["weights"], strict=True):
        assert np.asarray(ours) == pytest.approx(np.asarray(value), **CLOSE)


@pytest.mark.parametrize("model", MODELS[:-1])
@pytest.mark.parametrize("strategy", ["parameter_server"])
def test_counts_exactly_on_asynchronous_workers(strategy, model, finished, expected):
    found, kerass = finished(strategy).chief["custom_step_cases.trained"][model], expected[model]

    assert found["iterations"] == kerass["iterations"]
    assert set(found["history"]) == set(kerass["history"])
    assert np.isfinite([value for values in found["history"].values() for value in values]).all()
    if model == "compiled":
        assert found["history"]["seen"] == [EXAMPLES, EXAMPLES]


@pytest.mark.parametrize("strategy", ["parameter_server"])
def test_asynchronous_workers_refuse_to_accumulate(strategy, finished):
    found = finished(strategy).chief["custom_step_cases.trained"]["accumulated"]

    assert "has gradient_accumulation_steps, which counts steps" in found


@pytest.mark.parametrize("strategy", ["mirrored", "parameter_server"])
def test_refuses_what_replicas_cannot_share(strategy, finished):
    found = finished(strategy).chief["custom_step_cases.refused"]

    assert (
        "writes to outside/total, a variable that neither the model nor its metrics have" in found["Outside"]
    )
    assert "updates variables in a branch" in found["Branching"]
