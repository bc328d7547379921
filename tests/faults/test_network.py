"""Two workers on hosts of their own, joined by a wire of 100 Mbit/s that is slow, loses packets, or is cut."""

import pytest
from hosts import begun_with
from proofs import prove_exact, prove_nothing_left
from wire import HOSTS, why_no_wire

pytestmark = [pytest.mark.faults, pytest.mark.skipif(bool(why := why_no_wire()), reason=why)]


@pytest.fixture(scope="module", params=["tcp", pytest.param("ring", marks=pytest.mark.again)])
def workers(request, cache):
    """Return a function that opens a wire and a worker at each end, for tfdist's or TensorFlow's exchange."""
    return workers_with({"implementation": request.param}, cache)


def workers_with(communication, cache):
    return lambda folder: begun_with("multi_worker_mirrored", folder, cache, communication=communication)


@pytest.fixture(scope="module")
def straight(tmp_path_factory, workers):
    """Return the first worker of a run over a wire without faults."""
    with workers(tmp_path_factory.mktemp("straight")) as (_, tasks):
        tasks.start()
        assert set(tasks.ends().values()) == {0}, tasks.told()
    return tasks.lead


@pytest.mark.parametrize("loss", [0.02, pytest.param(0.1, marks=pytest.mark.again)])
def test_a_wire_that_is_slow_and_loses_packets_makes_no_difference(straight, tmp_path, workers, loss):
    with workers(tmp_path) as (wire, tasks):
        wire.delay, wire.loss = 0.01, loss
        tasks.start()
        assert set(tasks.ends().values()) == {0}, tasks.told()
    assert wire.lost > 10
    prove_exact(tasks.lead, 2, straight)
    prove_nothing_left(tasks.lead)


def test_a_short_cut_is_waited_for(straight, tmp_path, workers):
    with workers(tmp_path) as (wire, tasks):
        tasks.start()
        tasks.reach(40)
        wire.is_cut = True
        lost = wire.lost
        tasks.lead.until(lambda: wire.lost >= lost + 3, "some packets have got lost")
        wire.is_cut = False
        assert set(tasks.ends().values()) == {0}, tasks.told()
    assert len(tasks.lead.history()) == 1
    prove_exact(tasks.lead, 2, straight)
    prove_nothing_left(tasks.lead)


def test_a_cut_is_noticed_named_and_gone_on_from(straight, tmp_path, workers):
    with workers(tmp_path) as (wire, tasks):
        tasks.start()
        tasks.reach(40)
        wire.is_cut = True
        assert set(tasks.ends().values()) == {138}, tasks.told()
        safe = tasks.lead.newest()
        for task, other in zip(tasks.values(), (1, 0), strict=True):
            assert f"worker:{other} at {HOSTS[other]}:2222" in task.said()
        wire.is_cut = False
        tasks.start()
        assert set(tasks.ends().values()) == {0}, tasks.told()
    assert [each["at_step"] for each in tasks.lead.history()] == [0, safe]
    prove_exact(tasks.lead, 2, straight)
    prove_nothing_left(tasks.lead)


@pytest.mark.again
@pytest.mark.parametrize("workers", ["tcp"], indirect=True)
def test_bytes_that_are_changed_on_the_way_are_never_added_up(straight, tmp_path, cache):
    with workers_with({"encryption": "tls"}, cache)(tmp_path) as (wire, tasks):
        tasks.start()
        tasks.reach(40)
        wire.alters = True
        assert set(tasks.ends().values()) == {138}, tasks.told()
        assert not wire.alters
        assert "is not what it has encrypted" in tasks.told()
        safe = tasks.lead.newest()
        tasks.start()
        assert set(tasks.ends().values()) == {0}, tasks.told()
    assert [each["at_step"] for each in tasks.lead.history()] == [0, safe]
    prove_exact(tasks.lead, 2, straight)
    prove_nothing_left(tasks.lead)
