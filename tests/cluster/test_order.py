"""Workers cut up one order of the data, also where each of them draws it, or refuse."""

import pytest
from clusters import run_cluster

CASES = ["order_cases.drawn"]


@pytest.mark.parametrize("strategy", ["multi_worker_mirrored"])
def test_orders_that_differ_between_workers_are_refused(strategy, finished):
    cluster = finished(strategy)
    found = cluster.results

    assert "That is right if each changes the same examples at random" in "".join(cluster.logs.values())
    for result in found.values():
        drawn = result["order_cases.drawn"]
        assert drawn["agreed"] == drawn["generated"] == drawn["of_python"] == [2.0] * 50
        assert drawn["own"].startswith("the data set: differs between worker:0 and worker:1")
        assert "keras.utils.set_random_seed" in drawn["own"]
        for text in drawn["own_of_python"].values():
            assert text.startswith("the data set: differs between worker:0 and worker:1 in its first ")
        assert len(drawn["of_own_python"]) == 50  # they may be changed at random
        assert "in its first batch:" in drawn["own_of_python"]["fit"]
        assert "in its first 13 batches:" in drawn["own_of_python"]["later"]  # of 13, at their end
        assert drawn["split"][0].startswith(
            "the data set: is shuffled without a seed: workers would lose some"
        )
        assert drawn["split"][1] == ""


def test_a_script_that_seeds_nothing_draws_the_same_on_all_workers(tmp_path):
    found = run_cluster(tmp_path, "multi_worker_mirrored", ["order_cases.drawn_first"], workers=2).results

    one, other = (each["order_cases.drawn_first"] for each in found.values())
    assert one == other
    assert one["permuted"] == one["by_keras"] == [2.0] * 50
