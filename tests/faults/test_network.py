"""Two workers on hosts of their own, joined by a wire that is slow, loses packets, or is cut."""

import contextlib

import pytest
from proofs import prove_exact, prove_nothing_left
from setups import config
from training import Training
from wire import HOSTS, Wire, why_no_wire

pytestmark = pytest.mark.faults

CLUSTER = {"worker": [f"{host}:2222" for host in HOSTS]}


@pytest.fixture(scope="module", params=["tcp", pytest.param("ring", marks=pytest.mark.again)])
def workers(request, cache):
    """Return a function that opens a wire and a worker at each end, for tfdist's or TensorFlow's exchange."""
    return workers_with({"implementation": request.param}, cache)


def workers_with(communication, cache):
    run = config("multi_worker_mirrored", 200, cluster=CLUSTER, launch={}, communication=communication)

    @contextlib.contextmanager
    def made(folder):
        with Wire() as wire, contextlib.ExitStack() as stack:
            tasks = [
                stack.enter_context(
                    Training(folder, run, cache, task=f"worker:{side}", prefix=wire.inside(side))
                )
                for side in (0, 1)
            ]
            for task in tasks:
                task.environ["TFDIST_SECRET"] = "what both of them know"
            yield wire, tasks

    return made


def started(tasks):
    for task in tasks:
        task.start()


def ended(tasks):
    return [task.end() for task in tasks]


def told(tasks):
    return "\n".join(task.tail() for task in tasks)


@pytest.fixture(scope="module", autouse=True)
def _wire_can_be_had():
    if reason := why_no_wire():
        pytest.skip(f"no wire between two hosts can be had here: {reason}")


@pytest.fixture(scope="module")
def straight(tmp_path_factory, workers):
    """Return the first worker of a run over a wire without faults."""
    with workers(tmp_path_factory.mktemp("straight")) as (_, tasks):
        started(tasks)
        assert ended(tasks) == [0, 0], told(tasks)
    return tasks[0]


def test_a_wire_that_is_slow_and_loses_packets_makes_no_difference(straight, tmp_path, workers):
    with workers(tmp_path) as (wire, tasks):
        wire.delay, wire.loss = 0.01, 0.02
        started(tasks)
        assert ended(tasks) == [0, 0], told(tasks)
    assert wire.lost > 10
    prove_exact(tasks[0], 2, straight)
    prove_nothing_left(tasks[0])


def test_a_short_cut_is_waited_for(straight, tmp_path, workers):
    with workers(tmp_path) as (wire, tasks):
        started(tasks)
        tasks[0].until(lambda: tasks[0].newest() >= 40, "some steps are done")
        wire.is_cut = True
        lost = wire.lost
        tasks[0].until(lambda: wire.lost >= lost + 3, "some packets have got lost")
        wire.is_cut = False
        assert ended(tasks) == [0, 0], told(tasks)
    assert len(tasks[0].history()) == 1
    prove_exact(tasks[0], 2, straight)
    prove_nothing_left(tasks[0])


def test_a_cut_is_noticed_named_and_gone_on_from(straight, tmp_path, workers):
    with workers(tmp_path) as (wire, tasks):
        started(tasks)
        tasks[0].until(lambda: tasks[0].newest() >= 40, "some steps are done")
        wire.is_cut = True
        assert ended(tasks) == [138, 138], told(tasks)
        safe = tasks[0].newest()
        for task, other in zip(tasks, (1, 0), strict=True):
            assert f"worker:{other} at {HOSTS[other]}:2222" in task.said()
        wire.is_cut = False
        started(tasks)
        assert ended(tasks) == [0, 0], told(tasks)
    assert [each["at_step"] for each in tasks[0].history()] == [0, safe]
    prove_exact(tasks[0], 2, straight)
    prove_nothing_left(tasks[0])


@pytest.mark.again
@pytest.mark.parametrize("workers", ["tcp"], indirect=True)
def test_bytes_that_are_changed_on_the_way_are_never_added_up(straight, tmp_path, cache):
    with workers_with({"encryption": "tls"}, cache)(tmp_path) as (wire, tasks):
        started(tasks)
        tasks[0].until(lambda: tasks[0].newest() >= 40, "some steps are done")
        wire.alters = True
        assert ended(tasks) == [138, 138], told(tasks)
        assert not wire.alters
        assert "is not what it has encrypted" in told(tasks)
        safe = tasks[0].newest()
        started(tasks)
        assert ended(tasks) == [0, 0], told(tasks)
    assert [each["at_step"] for each in tasks[0].history()] == [0, safe]
    prove_exact(tasks[0], 2, straight)
    prove_nothing_left(tasks[0])
