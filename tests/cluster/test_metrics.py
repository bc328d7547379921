"""Metrics of users' own count every example once, whatever their state is, or are refused by name."""

import numpy as np
import pytest
from clusters import SETUPS
from metric_cases import BATCH, values

CASES = ["metric_cases.counted"]


@pytest.mark.parametrize("strategy", list(SETUPS))
def test_metrics_are_those_of_all_examples(strategy, finished):
    found = finished(strategy).chief["metric_cases.counted"]
    if not found:
        pytest.skip("metrics of Keras 2 count in variables of their own")

    y = values()
    confusion = np.zeros((2, 2))
    np.add.at(confusion, ((y > 0).astype(int), (y > 1).astype(int)), 1)
    averages = [y[begin : begin + BATCH].mean() for begin in range(0, len(y), BATCH)]
    evaluated = {name: [value] for name, value in found["evaluated"].items()}
    for results, count in ((found["history"], 2), (evaluated, 1)):
        np.testing.assert_allclose(results["total"], [y.sum()] * count, rtol=1e-5)
        assert results["average"] == [pytest.approx(np.mean(averages), rel=1e-5)] * count  # of batches
        assert results["confusion"] == [confusion.tolist()] * count
        assert results["largest"] == [pytest.approx(y.max())] * count
        assert results["count"] == [7.0 + len(y)] * count
        assert np.shape(results["f1_score"]) == (count, 1)
    assert found["stored"] == pytest.approx(y.sum(), rel=1e-5)  # metric.result() is what the logs say


@pytest.mark.parametrize("strategy", list(SETUPS))
def test_state_that_replicas_cannot_merge_is_refused_by_name(strategy, finished):
    found = finished(strategy).chief["metric_cases.counted"]
    if not found:
        pytest.skip("metrics of Keras 2 count in variables of their own")

    if strategy == "one_device":
        assert found["alone"] == [pytest.approx(values().max())]
    else:
        assert found["refused"].startswith("metric largest: does more than add to its variable largest")
        assert "merge_state" in found["refused"]
