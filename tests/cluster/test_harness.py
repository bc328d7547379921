"""The tests' own harness: a hang fails its test and shows where every task stands."""

import re

import pytest
from clusters import Running

from tfdist.cluster.config import ClusterConfig


def test_a_hang_shows_where_every_task_stands(tmp_path):
    cluster = ClusterConfig.local(workers=2)
    order = {"strategy": "multi_worker_mirrored", "options": {}, "folder": str(tmp_path)}
    with Running(tmp_path, cluster) as running:
        for task in cluster.tasks():
            running.start(task, {**order, "cases": ["lost_cases.half_hanging"]})
        for index in (0, 1):
            running.wait_for(f"begun-{index}")
        running.until_in("worker:0", "reduce")
        with pytest.raises(pytest.fail.Exception) as caught:
            running.wait(1)

    _, first, second = re.split(r"--- worker:\d, still running ---", str(caught.value))
    assert "still running after 1 s: ['worker:0', 'worker:1']" in str(caught.value)
    assert "in half_hanging" in first
    assert "in reduce" in first
    assert "in do_something_else" in second
