"""Metrics of users' own count every example once, whatever their state is, or are refused by name."""

import numpy as np
import pytest
from metric_cases import values

from conftest import SETUPS

CASES = ["metric_cases.counted"]


@pytest.mark.parametrize("strategy", list(SETUPS))
def test_metrics_are_those_of_all_examples(strategy, finished):
    found = finished(strategy).chief["metric_cases.counted"]
    if not found:
        pytest.skip("metrics of Keras 2 count in variables of their own")

    y = values()
    confusion = np.zeros((2, 2))
    np.add.at(confusion, ((y > 0).astype(int), (y > 1).astype(int)), 1)
    for name in ("total", "val_total"):
        np.testing.assert_allclose(found["history"][name], [y.sum()] * 2, rtol=1e-5)
        assert found["history"][name.replace("total", "confusion")] == [confusion.tolist()] * 2
        assert found["history"][name.replace("total", "largest")] == [pytest.approx(y.max())] * 2
        assert found["history"][name.replace("total", "count")] == [7.0 + len(y)] * 2
        assert np.shape(found["history"][name.replace("total", "f1_score")]) == (2, 1)
    assert found["evaluated"]["confusion"] == confusion.tolist()
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
