"""Every example of data that only one process can read is seen once, under every strategy."""

import pytest
from chief_data_cases import x, y
from clusters import SETUPS, on

CASE = "chief_data_cases.read_once"
CASES = [CASE]


# Mirrored workers read as one process does, and have to agree besides; workers in step beside a ps read as all beside one.
@pytest.mark.parametrize("strategy", on(SETUPS, again=["one_device", "mirrored", "parameter_server_sync"]))
def test_generators_and_large_arrays_are_read_once(strategy, finished):
    cluster = finished(strategy)
    found = cluster.chief[CASE]

    assert "invoked without using" not in "".join(
        cluster.logs.values()
    )  # TensorFlow's, of what the chief traces
    for losses in found["losses"].values():
        assert losses == pytest.approx([float(y.mean())] * len(losses), rel=1e-6)
    assert [len(losses) for losses in found["losses"].values()] == [1, 2, 2, 2]
    assert found["evaluated"] == pytest.approx(float(y.mean()), rel=1e-6)
    assert found["predicted"] == found["predicted_of_python"] == x.tolist()
