"""Later calls on a model trace nothing, as in Keras, and give the numbers of Keras, under every strategy."""

import pytest
from clusters import IN_STEP, SETUPS, on

CASE = "again_cases.repeated"
CASES = [CASE]

# After fit, evaluate and predict have been called once; weights, and an end, make other data.
TRACES = {"fit", "evaluate", "predict", "endless", "ending", "weighted", "frozen"}
# Traces are kept in one place for all. Of one device, tests/unit/training/keras/test_kept_traces.py proves the same; the
# other two run the same graphs as the others, over a network or beside a ps.
ALIKE = ["one_device", "multi_worker_mirrored", "parameter_server_sync"]


@pytest.fixture(scope="session")
def kerass(cluster_once):
    name = "again_cases.repeated_by_keras"
    return cluster_once("again_by_keras", "one_device", [name]).chief[name]


@pytest.mark.parametrize("strategy", on(SETUPS, again=ALIKE))
def test_later_calls_trace_nothing(strategy, finished):
    for found in finished(strategy).results.values():
        for told in found[CASE]["ours"]:
            assert {name for name, each in told.items() if each["traced"]} <= TRACES
            assert all(told[name]["traced"] for name in ("fit", "frozen"))


@pytest.mark.parametrize("strategy", on([name for name in SETUPS if name != "one_device"], again=ALIKE))
def test_batches_of_any_size_share_a_trace(strategy, finished):
    for found in finished(strategy).results.values():
        counts = found[CASE].get("batches", [1, 0, 0, 0] * 2)  # Keras 2 has its own methods
        assert [bool(count) for count in counts] == [True, False, False, False] * 2


@pytest.mark.parametrize("strategy", on(IN_STEP, again=ALIKE))
def test_calls_in_a_row_give_the_numbers_of_keras(strategy, finished, kerass):
    ours = finished(strategy).chief[CASE]["ours"]
    for found, expected in zip(ours, kerass, strict=True):
        for name, each in expected.items():
            assert found[name]["numbers"] == pytest.approx(each["numbers"], rel=1e-9, abs=1e-9), name
