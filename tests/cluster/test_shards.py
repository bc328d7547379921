"""Variables in shards: trained, read and saved as if they were whole, and held by several parameter servers."""

import numpy as np
import pytest
from clusters import run_cluster

CASE = "shard_cases.trained"
CASES = [CASE]


@pytest.fixture(scope="module")
def whole(cluster_once):
    """Return the results of one process for the same model, in which no variable is in shards."""
    return cluster_once("whole", "one_device", [CASE]).chief[CASE]


def _flat(weights):
    return np.concatenate([np.ravel(each) for each in weights])


def _check(found, whole):
    for optimizer, ours in found.chief[CASE].items():
        theirs = whole[optimizer]
        # float64; Keras 2 gives the weights part by part, in the order of the whole
        np.testing.assert_allclose(_flat(ours["weights"]), _flat(theirs["weights"]), rtol=1e-10, atol=1e-10)
        assert ours["losses"] == pytest.approx(theirs["losses"], rel=1e-10)

    ours, theirs = found.chief[CASE]["adam"], whole["adam"]
    np.testing.assert_allclose(ours["predicted"], theirs["predicted"], rtol=1e-9, atol=1e-9)
    assert ours["evaluated"]["loss"] == pytest.approx(theirs["evaluated"]["loss"], rel=1e-9)
    for name in ("words", "kernel"):
        tasks = [device.partition("/device")[0] for device in ours["devices"][name]]
        assert sorted(tasks) == ["/job:ps/replica:0/task:0", "/job:ps/replica:0/task:1"]
    assert ours["whole_reads"] == []
    assert all(ours["saved"].values()), ours["saved"]


@pytest.mark.parametrize("strategy", ["parameter_server_sync"])
def test_workers_in_step_train_shards_as_one_process_trains_the_whole(strategy, finished, whole):
    _check(finished(strategy), whole)


@pytest.mark.slow
def test_a_worker_at_its_own_pace_trains_shards_as_one_process_trains_the_whole(tmp_path, whole):
    # One worker: of several, each would compute on weights that the others have changed meanwhile.
    options = {"min_shard_bytes": 2000}
    _check(run_cluster(tmp_path, "parameter_server", [CASE], options=options, workers=1, ps=2), whole)
