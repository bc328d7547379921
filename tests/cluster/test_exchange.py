"""Gradients go over a ring of the workers' own, if they share a secret, and come out as they do otherwise."""

import signal

import numpy as np
import pytest
from clusters import LONGEST, Running, run_cluster
from exchange_cases import DTYPES
from test_exactness import TOLERANCE, _flat
from test_lost import begun, lose, says

from tfdist.cluster.config import ClusterConfig
from tfdist.transport.authentication import SECRET

WORKERS = 3


def test_a_ring_adds_up_as_one_process_does_and_names_whom_it_loses(tmp_path, keras_itself):
    cases = ["exchange_cases.way", "exchange_cases.sums", "equivalent_clipped"]
    case = {"first": cases, "workers": WORKERS}
    with begun(tmp_path, "multi_worker_mirrored", "fitting", **case) as (running, _):
        _, lost = lose(running, "worker:1")
        finished = running.wait(LONGEST, failures_expected=True)

    # Who looks late may find that another survivor has ended too; the first to end names whom it lost alone.
    said = [finished.logs[survivor].count(f"TaskLost: fit: {lost}:") for survivor in ("worker:0", "worker:2")]
    assert max(said) == 1, finished.logs
    for survivor in ("worker:0", "worker:2"):
        assert finished.exit_codes[survivor] == 138
        assert lost.removeprefix("lost ") in finished.logs[survivor]
    of_all = [finished.results[name] for name in ("worker:0", "worker:2")]
    for name in cases:  # to the bit
        assert of_all[0][name] == of_all[1][name]
    assert of_all[0]["exchange_cases.way"] == "RingAllReduce"
    _check_sums(of_all[0]["exchange_cases.sums"])
    ours, kerass = of_all[0]["equivalent_clipped"], keras_itself["clipped"]
    assert ours["losses"] == pytest.approx(kerass["losses"], **TOLERANCE)
    for mine, its in zip(_flat(ours["weights"][-1]), _flat(kerass["weights"][-1]), strict=True):
        assert mine == pytest.approx(its, **TOLERANCE)


def _check_sums(found):
    parts = [np.random.default_rng(rank).normal(size=(7, 3)).astype("float32") for rank in range(WORKERS)]
    dense, rows, *of_types, empty, ones = found["first"]
    np.testing.assert_allclose(dense, sum(parts), rtol=1e-5)
    assert np.asarray(found["second"]).tolist() == (2 * np.float32(dense)).tolist()
    assert rows == [[1, 1]] * WORKERS
    assert of_types == [[0, 3, 6, 9, 12]] * len(DTYPES)
    assert (empty, ones) == ([], WORKERS)
    assert (found["eager"], found["mean"]) == (3, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "communication",
    [
        {"encryption": "tls"},
        pytest.param({"implementation": "ring", "timeout": 60}, marks=pytest.mark.again),  # TensorFlow's
    ],
    ids=["tls", "ring"],
)
def test_several_replicas_of_a_worker_are_added_up_together(tmp_path, keras_itself, communication):
    options = {"communication": communication, "logical_devices": 2}
    cases = ["counting", "equivalent_clipped"]
    finished = run_cluster(tmp_path, "multi_worker_mirrored", cases, workers=2, options=options)

    one, other = finished.results.values()
    assert one == other
    assert one["counting"]["weight"] == 101 * one["counting"]["epochs"]
    ours, kerass = one["equivalent_clipped"]["weights"][-1], keras_itself["clipped"]["weights"][-1]
    for mine, its in zip(_flat(ours), _flat(kerass), strict=True):
        assert mine == pytest.approx(its, **TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize(("implementation", "status"), [("tcp", 2), ("auto", 0)])
def test_workers_that_do_not_know_each_other_exchange_nothing_over_a_ring(
    tmp_path, monkeypatch, implementation, status
):
    cluster = ClusterConfig.local(workers=2)
    order = {
        "strategy": "multi_worker_mirrored",
        "options": {"communication": {"implementation": implementation}},
        "cases": ["counting", "exchange_cases.way"],
        "folder": str(tmp_path),
    }
    with Running(tmp_path, cluster) as running:
        for task in cluster.tasks():
            monkeypatch.setenv(SECRET, f"a secret of {task} alone")
            running.start(task, order)
        finished = running.wait(LONGEST, failures_expected=True)

    assert set(finished.exit_codes.values()) == {status}, finished.logs["worker:0"][-3000:]
    if status:
        assert all(
            "ConfigError: communication.implementation tcp: cannot connect the tasks: " in log
            for log in finished.logs.values()
        )
        return
    assert all("gradients use TensorFlow's own collectives" in log for log in finished.logs.values())
    assert finished.chief["exchange_cases.way"] == "LimitedAllReduce"  # that of TensorFlow, not a ring
    assert finished.chief["counting"]["weight"] == 303


@pytest.mark.slow
def test_gradients_of_8_bits_train_all_alike(tmp_path):
    options = {"communication": {"implementation": "tcp", "dtype": "int8"}}
    cases = ["exchange_cases.sums", "smoke"]
    finished = run_cluster(tmp_path, "multi_worker_mirrored", cases, workers=2, options=options)

    one, other = finished.results.values()
    assert one == other
    assert one["smoke"]["history"]["loss"][-1] < one["smoke"]["history"]["loss"][0]
    np.testing.assert_allclose(  # what are no gradients is exact
        one["exchange_cases.sums"]["first"][0],
        sum(np.random.default_rng(rank).normal(size=(7, 3)).astype("float32") for rank in range(2)),
        rtol=1e-6,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        # tests/unit/transport/test_join_ring.py proves when this limit counts, and the case below what follows.
        pytest.param({"communication": {"implementation": "tcp", "timeout": 20.0}}, marks=pytest.mark.again),
        {},
    ],
)
def test_a_worker_that_falls_silent_is_named(tmp_path, options):
    with begun(tmp_path, "multi_worker_mirrored", "fitting", workers=2, options=options) as (running, _):
        stopped, lost = lose(running, "worker:1", by=signal.SIGSTOP)
        try:
            finished = running.wait(LONGEST, failures_expected=True)
        finally:
            stopped.kill()

    says(finished, "worker:0", "fit", lost)
