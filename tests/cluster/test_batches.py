"""`train_on_batch` and `test_on_batch` give the numbers of one process under every strategy."""

import pytest
import tensorflow as tf
from clusters import SETUPS, on

CASE = "batch_cases.one_at_a_time"
COMPARED_WITH = "one_device"
CASES = [CASE]

pytestmark = pytest.mark.skipif(
    tf.keras.__version__ < "3", reason="Keras 2's own methods split a batch among the replicas"
)


# Devices of one process and workers in step beside a ps take their parts as mirrored workers do.
OF_SEVERAL = [name for name in SETUPS if name != "one_device"]


@pytest.mark.parametrize("strategy", on(OF_SEVERAL, again=["mirrored", "parameter_server_sync"]))
def test_one_batch_at_a_time_as_in_one_process(strategy, finished):
    ours, kerass = finished(strategy).chief[CASE], finished("one_device").chief[CASE]

    assert ours["left"] == []
    for found, expected in zip(ours["logs"], kerass["logs"], strict=True):
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-9)
    for found, expected in zip(ours["weights"], kerass["weights"], strict=True):
        assert _flat(found) == pytest.approx(_flat(expected), rel=1e-9, abs=1e-9)


def _flat(weight):
    return [number for row in weight for number in (row if isinstance(row, list) else [row])]
