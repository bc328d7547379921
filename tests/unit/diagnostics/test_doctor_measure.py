"""Check that doctors measure the links between them, and what they expect of the cluster."""

import functools
import threading

import pytest
from model_parts import sizes_of

from commands import tfdist
from tfdist.cluster.addresses_and_free_ports import LocalPorts
from tfdist.cluster.config import ClusterConfig, Task
from tfdist.coordination.rendezvous import fingerprint
from tfdist.diagnostics.doctor import links, protocol
from tfdist.diagnostics.doctor.answer_other_doctors import Answering
from tfdist.diagnostics.doctor.expected_speed import check_links, expected_speed
from tfdist.diagnostics.doctor.links import measure_links, measure_to
from tfdist.diagnostics.doctor.meeting import Meeting
from tfdist.diagnostics.doctor.parts_of_run_records import Part
from tfdist.diagnostics.doctor.protocol import Facts, Measured, Participant
from tfdist.trainer.config import Config
from tfdist.transport import listen_and_call, unproven_callers

SECONDS = 1200.0  # more than a test may take: who waits for so long hangs
SECRET = b"0123456789abcdef"
FIRST, SECOND = Task("worker", 0), Task("worker", 1)
PARTS = {
    "model": Part(name="model", sizes=sizes_of(4_000_000)),
    "speed": Part(name="speed", examples_per_second=1000.0, batch_size=100),
}


@pytest.fixture
def cluster():
    """A cluster of three tasks on free ports, which no other process takes meanwhile."""
    reserved = LocalPorts(3)
    yield ClusterConfig(worker=[f"127.0.0.1:{port}" for port in reserved.ports])
    del reserved  # until now it kept the ports


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    for name in ("_SECONDS", "_SECONDS_TO_CONNECT"):
        monkeypatch.setattr(protocol, name, SECONDS)
    for module in (listen_and_call, unproven_callers):
        for name in ("HANDSHAKE_TIMEOUT", "PROVEN_TIMEOUT"):
            monkeypatch.setattr(module, name, SECONDS)
    monkeypatch.setattr(links, "_SECONDS_FOR_A_PAIR", SECONDS)


def measured_by_all(cluster, measuring=(0, 1, 2)):
    """Return what the doctor of each task has measured, where only some of them measure."""
    results = {}

    def run(task):
        facts = Facts(task=str(task), cluster=fingerprint(cluster), measures=task.index in measuring)
        own = Participant(cluster, task, SECRET, facts)
        measure = functools.partial(measure_to, own) if facts.measures else None
        with Answering(own, measure=measure) as answering:
            meeting = Meeting(own)
            meeting.hold(answering, SECONDS)
            if facts.measures:
                results[task] = measure_links(own, meeting, answering)

    threads = [threading.Thread(target=run, args=(task,)) for task in cluster.tasks()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_the_lead_measures_each_link_in_both_directions(cluster):
    results = measured_by_all(cluster)

    measured = results[FIRST]
    assert len(measured) == 6
    assert all(each.problem == "" and each.bytes_per_second > 0 for each in measured.values())
    assert all(each.round_trip > 0 for each in measured.values())
    assert results[SECOND] == {}
    found = list(check_links(measured))
    assert [finding.state for finding in found] == ["ok"] * 6
    assert "MB/s, round trip" in found[0].found


def test_a_task_that_does_not_measure_is_left_out(cluster):
    results = measured_by_all(cluster, measuring=(0, 1))

    assert set(results[FIRST]) == {(FIRST, SECOND), (SECOND, FIRST)}
    assert measured_by_all(cluster, measuring=(1, 2))[SECOND] == {}  # without the lead, nobody waits


def test_a_link_to_a_task_that_is_gone_is_a_warning(cluster):
    facts = Facts(task="worker:0", cluster=fingerprint(cluster))
    measured = measure_to(Participant(cluster, FIRST, SECRET, facts), SECOND)
    [finding] = check_links({(FIRST, SECOND): measured})

    assert finding.state == "warning"
    assert "worker:0 to worker:1 was not measured" in finding.found
    assert "connection refused" in finding.found


@pytest.mark.parametrize(
    ("bandwidth", "round_trip", "second", "least", "most", "limit"),
    [
        (10e9, 1e-5, 1000.0, 2.8, 3.0, "computing"),
        (10e9, 1e-5, 500.0, 2.8, 3.0, "worker:1, which computes 500 examples/s"),
        (20e6, 1e-5, 1000.0, 0.5, 2.5, "the bandwidth of the slowest link"),
        (10e9, 0.2, 1000.0, 0.2, 2.0, "the latency of the slowest link"),
    ],
)
def test_the_speed_up_and_its_limit_are_told(cluster, bandwidth, round_trip, second, least, most, limit):
    links = {(FIRST, SECOND): Measured(bandwidth, round_trip)}
    speeds = {task: second if task == SECOND else 1000.0 for task in cluster.tasks()}
    [finding] = expected_speed(cluster, Config(), links, speeds, PARTS)

    assert least <= float(finding.found.split()[0]) <= most
    assert "with 3 workers of multi_worker_mirrored in batches of 100" in finding.found
    assert f"limited by {limit}" in finding.found


def test_nothing_is_expected_of_what_was_not_measured(cluster):
    failed = {(FIRST, SECOND): Measured(problem="gone")}
    link = {(FIRST, SECOND): Measured(1e9, 1e-4)}

    assert not list(expected_speed(cluster, Config(), failed, {FIRST: 1.0}, PARTS))
    assert not list(expected_speed(cluster, Config(), link, {}, PARTS))
    assert not list(expected_speed(cluster, Config(), link, {FIRST: 1.0}, {}))


def test_measuring_needs_a_config():
    run = tfdist("doctor", "--measure")

    assert run.returncode == 2
    assert run.stderr.startswith("tfdist: --measure: ")
