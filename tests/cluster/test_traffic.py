"""Bytes at the sockets: what each task sends in a step is what its variables and gradients are."""

import sys

import pytest
import traffic_cases
from clusters import on

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel does not tell")
CASES = ["traffic_cases.trained", "traffic_cases.evaluated"]
WEIGHTS = 4 * traffic_cases.INPUTS * traffic_cases.UNITS  # bytes
SQUARE = 4 * traffic_cases.UNITS**2
# Of what is sent beside: the data, the calls, and the probes of a machine that may be slow.
MORE = 1.2


def per_step(finished, strategy):
    return finished(strategy).chief["traffic_cases.trained"]


@pytest.mark.parametrize("strategy", ["parameter_server"])
def test_a_ps_sends_variables_and_a_worker_gradients(finished, strategy):
    sent = per_step(finished, strategy)
    assert set(sent) == {"chief:0", "worker:0", "worker:1", "ps:0"}
    # A step is one worker's.
    assert WEIGHTS < sent["ps:0"] < MORE * WEIGHTS
    assert WEIGHTS < sent["worker:0"] + sent["worker:1"] < MORE * WEIGHTS
    assert sent["chief:0"] < (MORE - 1) * WEIGHTS


@pytest.mark.skipif(traffic_cases.keras.__version__ < "3", reason="Keras 2 reads variables where they are")
@pytest.mark.parametrize("strategy", ["parameter_server"])
def test_a_worker_fetches_once_for_a_call_what_stands_still(finished, strategy):
    found = finished(strategy).chief["traffic_cases.evaluated"]
    # Two workers, each of which tests and predicts five batches, and of the embedding needs a row in each.
    for sent in found["sent"]:
        assert 2 * SQUARE < sent["ps:0"] < MORE * 2 * SQUARE
    for first, again, of_others in (found["losses"], found["outputs"]):
        assert again == first
        assert of_others != first


@pytest.mark.parametrize("strategy", ["parameter_server_sync"])
def test_in_a_step_together_every_worker_has_the_variables_sent(finished, strategy):
    sent = per_step(finished, strategy)
    assert set(sent) == {"chief:0", "worker:0", "worker:1", "ps:0", "ps:1"}
    assert 2 * WEIGHTS < sent["ps:0"] + sent["ps:1"] < MORE * 2 * WEIGHTS
    for worker in ("worker:0", "worker:1"):
        assert sent[worker] > WEIGHTS


@pytest.mark.parametrize("strategy", ["multi_worker_mirrored"])
def test_a_mirrored_worker_sends_its_gradients(finished, strategy):
    sent = per_step(finished, strategy)
    assert list(sent) == ["worker:0"]
    assert WEIGHTS < sent["worker:0"] < MORE * WEIGHTS


@pytest.mark.parametrize("strategy", on(["one_device", "mirrored"], again=["mirrored"]))
def test_a_process_alone_sends_nothing(finished, strategy):
    assert per_step(finished, strategy) == {}
