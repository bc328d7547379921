"""Ordinary models of every kind learn on every strategy what Keras's own fit makes of them in one process.

One of them on mirrored workers and one on workers in step beside a ps are what every change is tested with.
"""

from collections import defaultdict

import numpy as np
import pytest
import tensorflow as tf
from clusters import IN_STEP
from zoo_models import EXAMPLES, MODELS

pytestmark = pytest.mark.skipif(
    tf.keras.__version__ < "3", reason="Keras 2 normalises each replica's own part"
)
SETUPS = {
    "one_device": {},
    "mirrored": {"options": {"logical_devices": 2}},
    "multi_worker_mirrored": {"workers": 2},
    "parameter_server": {"workers": 2, "ps": 1},
    "parameter_server_sync": {"workers": 2, "ps": 1},
}
QUICK = [("multi_worker_mirrored", "transformer"), ("parameter_server_sync", "unet")]
AGAIN = ("one_device", "mirrored")  # mirrored workers prove the same, over a network too
# Each is unlike the others in its data, its metrics or how it is built. The graphs of the rest are those of workers in
# step, whose numbers are compared.
AT_ITS_OWN_PACE = ("transformer", "preprocessed", "lazy")
# The others of these compute on a ps what mirrored workers compute, by the same parts of fit.
IN_STEP_BESIDE_A_PS = ("unet",)
# The layers of the first are much like an LSTM's; the second learns beside a ps, and devices of one process prove the
# last in tests/unit/training.
ON_WORKERS = tuple(name for name in MODELS if name not in ("bidirectional_gru", "unet", "added_losses"))
STEPS = 5
CLOSE = {"rtol": 1e-9, "atol": 1e-12}  # float64: sums in another order


def _pairs(strategies, models=MODELS):
    pairs = [(strategy, model) for strategy in strategies for model in models]

    def marks(strategy, model):
        slow = [] if (strategy, model) in QUICK else [pytest.mark.slow]
        every_time = {
            "multi_worker_mirrored": ON_WORKERS,
            "parameter_server": AT_ITS_OWN_PACE,
            "parameter_server_sync": IN_STEP_BESIDE_A_PS,
        }
        is_again = strategy in AGAIN or model not in every_time.get(strategy, MODELS)
        return [*slow, *([pytest.mark.again] if is_again else [])]

    return [pytest.param(*pair, marks=marks(*pair)) for pair in pairs]


@pytest.fixture(scope="module")
def results(request, cluster_once):
    """Return a function that gives the results for a model; those that are asked for share one cluster."""
    asked = defaultdict(set)
    for item in request.session.items:
        if item.module is request.module:
            asked[item.callspec.params["model"]].add(item.callspec.params["strategy"])

    def by(strategy, model):
        if strategy == "keras":
            cases = [f"zoo_cases.by_keras_{name}" for name in asked]
            return cluster_once("zoo_by_keras", "one_device", cases).chief[f"zoo_cases.by_keras_{model}"]
        cases = [
            f"zoo_cases.by_tfdist_{name}" for name, strategies in asked.items() if strategy in strategies
        ]
        found = cluster_once(f"zoo_by_{strategy}", strategy, cases, **SETUPS[strategy])
        return found.chief[f"zoo_cases.by_tfdist_{model}"]

    return by


@pytest.mark.parametrize(("strategy", "model"), _pairs(IN_STEP))
def test_a_model_learns_what_one_process_learns(strategy, model, results):
    ours, kerass = results(strategy, model), results("keras", model)

    assert (ours["iterations"], ours["counted"]) == (STEPS, EXAMPLES)
    assert len(ours["logs"]) == len(kerass["logs"]) == STEPS
    for mine, its in zip(
        [*ours["logs"], ours["evaluated"]], [*kerass["logs"], kerass["evaluated"]], strict=True
    ):
        assert mine.keys() == its.keys()
        for name in its:
            np.testing.assert_allclose(mine[name], its[name], **CLOSE, err_msg=name)
    for mine, its in zip(ours["weights"], kerass["weights"], strict=True):
        np.testing.assert_allclose(mine, its, **CLOSE)


@pytest.mark.parametrize(("strategy", "model"), _pairs(["parameter_server"]))
def test_asynchronous_workers_count_every_example_and_step(strategy, model, results):
    found = results(strategy, model)

    assert found["iterations"] == len(found["logs"]) == STEPS
    assert found["counted"] == EXAMPLES
    assert all(np.isfinite(list(logs.values())).all() for logs in [*found["logs"], found["evaluated"]])
    if model == "lazy":  # which has a metric that counts
        assert found["logs"][-1]["examples"] == found["evaluated"]["examples"] == EXAMPLES
