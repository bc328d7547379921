"""Check that the doctors of a cluster's tasks meet at their ports, and tell in what their hosts differ."""

import contextlib
import socket
import struct
import threading
import time
import types

import pytest

from tfdist.cluster.addresses_and_free_ports import LocalPorts
from tfdist.cluster.config import ClusterConfig, Task
from tfdist.coordination.rendezvous import fingerprint
from tfdist.diagnostics.doctor import protocol
from tfdist.diagnostics.doctor.answer_other_doctors import Answering
from tfdist.diagnostics.doctor.meeting import Meeting
from tfdist.diagnostics.doctor.missing_and_differing_hosts import compare_hosts, compare_meeting
from tfdist.diagnostics.doctor.protocol import (
    MOST_BULK,
    Bulk,
    Facts,
    LinkError,
    Measure,
    Measured,
    Participant,
    Received,
    ends_of,
    proofs_of,
    round_trips,
)
from tfdist.transport import listen_and_call, unproven_callers
from tfdist.transport.listen_and_call import ConnectError, Listener, call

SECONDS = 300.0  # a busy machine is no failure
SECRET, OTHER = b"0123456789abcdef", b"fedcba9876543210"
FIRST, SECOND = Task("worker", 0), Task("worker", 1)


@pytest.fixture
def cluster():
    """A cluster of two tasks on free ports, which no other process takes meanwhile."""
    reserved = LocalPorts(2)
    yield ClusterConfig(worker=[f"127.0.0.1:{port}" for port in reserved.ports])
    del reserved  # until now it kept the ports


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    for name in ("_SECONDS", "_SECONDS_TO_CONNECT"):
        monkeypatch.setattr(protocol, name, SECONDS)
    for module in (listen_and_call, unproven_callers):
        for name in ("HANDSHAKE_TIMEOUT", "PROVEN_TIMEOUT"):
            monkeypatch.setattr(module, name, SECONDS)


@pytest.fixture
def clock(monkeypatch):
    """Yield an object whose `now` is the time of all meetings."""
    held = types.SimpleNamespace(now=0.0)
    clock = types.SimpleNamespace(monotonic=lambda: held.now, sleep=time.sleep)
    monkeypatch.setattr("tfdist.diagnostics.doctor.meeting.time", clock)
    yield held
    held.now = float("inf")


def until(condition):
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def facts_of(cluster, task, **values):
    versions = {"python": "3.11.7", "tensorflow": "2.21.0", "keras": "3.1", "tfdist": "1"}
    return Facts(**{"task": str(task), "cluster": fingerprint(cluster), **versions, **values})


def participant(cluster, task, secret=SECRET):
    return Participant(cluster, task, secret, facts_of(cluster, task))


class Doctor(threading.Thread):
    """One task's doctor, without the checks of its machine."""

    def __init__(self, cluster, task, secret=SECRET, seconds=SECONDS, clock=time.time, says=None, **values):
        super().__init__()
        self.cluster, self.task, self.secret, self.seconds, self.clock = cluster, task, secret, seconds, clock
        self.facts = facts_of(cluster, says or task, **values)
        self.meeting = Meeting(Participant(cluster, task, secret, self.facts, clock))
        self.start()

    def run(self):
        own, meeting = Participant(self.cluster, self.task, self.secret, self.facts, self.clock), self.meeting
        with Answering(own) as answering:
            meeting.hold(answering, self.seconds)
        self.findings = list(compare_meeting(self.cluster, meeting, answering.finished, self.seconds))
        self.findings += compare_hosts(self.facts, meeting.met, needs_any_port=True)

    def found(self, check):
        """Return the one finding of a check."""
        self.join()
        [finding] = [finding for finding in self.findings if finding.check == check]
        return finding


def pair(cluster, others=None, **both):
    """Return the findings of the first of two doctors, which run at the same time."""
    first, second = Doctor(cluster, FIRST, **both), Doctor(cluster, SECOND, **{**both, **(others or {})})
    second.join()
    first.join()
    return first


def test_doctors_of_equal_hosts_meet(cluster):
    first = pair(cluster, config="c", data="d", folder="/data")

    assert {finding.state for finding in first.findings} == {"ok"}
    assert "met, round trip" in first.found("worker:1").found
    assert first.found("versions").found == (
        "on all of 2 hosts: tfdist 1, TensorFlow 2.21.0, Keras 3.1, Python 3.11.7"
    )
    assert first.found("config").found == "the config is the same on all of 2 hosts: c"
    assert " ms of this host's" in first.found("clocks").found


@pytest.mark.parametrize(
    ("values", "check", "state", "words"),
    [
        (
            {"tensorflow": "2.20.0"},
            "versions",
            "failed",
            "TensorFlow differs: 2.21.0 on worker:0, 2.20.0 on worker:1",
        ),
        ({"python": "3.12.1"}, "versions", "warning", "Python differs"),
        ({"config": "other"}, "config", "failed", "the config differs: c on worker:0, other on worker:1"),
        ({"data": ""}, "data", "failed", "the data differs: d on worker:0, none on worker:1"),
        ({"folder": "/elsewhere"}, "data", "warning", "/data on worker:0, /elsewhere on worker:1"),
    ],
)
def test_what_differs_between_hosts_is_found(cluster, values, check, state, words):
    first = pair(cluster, values, config="c", data="d", folder="/data")

    [finding] = [finding for finding in first.findings if finding.state != "ok"]
    assert (finding.check, finding.state) == (check, state)
    assert words in finding.found
    assert finding.remedy


def test_a_clock_that_is_ahead_is_found(cluster):
    first = pair(cluster, {"clock": lambda: time.time() + 90})

    assert first.found("clocks").state == "warning"
    assert "worker:1 +90.0 s" in first.found("clocks").found


@pytest.mark.parametrize(("mine", "theirs"), [(SECRET, OTHER), (SECRET, None), (None, SECRET)])
def test_another_secret_is_a_failure(cluster, clock, mine, theirs):
    first, second = Doctor(cluster, FIRST, secret=mine), Doctor(cluster, SECOND, secret=theirs)
    until(lambda: "secret" in first.meeting.refusals.get(SECOND, ""))
    clock.now = SECONDS
    second.join()

    assert first.found("worker:1").state == "failed"
    assert "TFDIST_SECRET" in first.found("worker:1").remedy
    assert first.meeting.met == {}


def test_doctors_without_a_secret_meet(cluster):
    assert pair(cluster, secret=None).found("worker:1").state == "ok"


def test_another_cluster_and_another_task_are_failures(cluster, clock):
    more = ClusterConfig(worker=[*cluster.worker, "127.0.0.1:1"])
    first, second = Doctor(cluster, FIRST), Doctor(more, SECOND)
    until(lambda: SECOND in first.meeting.refusals)
    clock.now = SECONDS
    assert first.found("worker:1").state == "failed"
    assert "another cluster" in first.found("worker:1").found
    second.join()

    clock.now = 0.0
    first = Doctor(cluster, FIRST)
    second = Doctor(cluster, SECOND, says=FIRST)
    until(lambda: SECOND in first.meeting.refusals)
    clock.now = SECONDS
    assert "answers as worker:0" in first.found("worker:1").found
    second.join()


def test_a_host_without_a_doctor_is_a_warning(cluster, clock):
    first = Doctor(cluster, FIRST, seconds=1.0)
    until(lambda: SECOND in first.meeting.failures)
    clock.now = 1.0

    assert first.found("worker:1").state == "warning"
    assert "no `tfdist doctor` was there within 1 s" in first.found("worker:1").found
    assert "--task worker:1" in first.found("worker:1").remedy


def test_a_name_that_nobody_knows_is_a_failure(cluster, unknown_host, clock):
    unknown = ClusterConfig(worker=[cluster.worker[0], f"{unknown_host}:2222"])
    first = Doctor(unknown, FIRST)
    until(lambda: SECOND in first.meeting.failures)
    clock.now = SECONDS

    assert first.found("worker:1").state == "failed"
    assert "its name is unknown" in first.found("worker:1").found
    assert first.found("worker:1").remedy == "Correct ClusterConfig: worker[1]"


def test_another_program_at_the_port_is_a_warning(cluster, clock):
    def greet():
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                connection.sendall(b"SSH-2.0-OpenSSH_9.6 and more\r\n")
                connection.close()

    with socket.create_server(("127.0.0.1", int(cluster.worker[1].split(":")[1]))) as listener:
        thread = threading.Thread(target=greet, daemon=True)
        thread.start()
        first = Doctor(cluster, FIRST)
        until(lambda: SECOND in first.meeting.refusals)
        clock.now = SECONDS
        found = first.found("worker:1")
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()

    assert found.state == "warning"
    assert "is not a task of this version of tfdist (something listens at the port)" in found.found


def test_a_task_that_does_not_call_back_is_a_warning(cluster, clock):
    # It answers, as behind a firewall that lets packets in and drops what it sends by itself.
    with Answering(participant(cluster, SECOND)):
        first = Doctor(cluster, FIRST, seconds=5.0)
        until(lambda: SECOND in first.meeting.met)
        clock.now = 5.0
        found = first.found("worker:1")

    assert found.state == "warning"
    assert "has not reached this task's port within 5 s" in found.found


def test_a_port_of_the_systems_choice_that_is_closed_is_a_warning(cluster):
    with Listener("127.0.0.1") as listener:
        assert pair(cluster, any_port=listener.port).found("other ports").state == "ok"
    with socket.socket() as bound:  # held, and not listened to: connections are refused
        bound.bind(("127.0.0.1", 0))
        first = pair(cluster, any_port=bound.getsockname()[1])

    assert first.found("other ports").state == "warning"
    assert "gRPC" in first.found("other ports").remedy


@pytest.fixture
def link(cluster):
    """A connection to a doctor that answers."""
    with Answering(participant(cluster, SECOND)):
        link, facts = participant(cluster, FIRST).call(SECOND)
        with link:
            assert facts.task == "worker:1"
            yield link


def test_bytes_are_received_and_bounded(link):
    link.send(Bulk(1_000_000))
    link.send_bulk(1_000_000)
    assert link.receive(Received) == Received()

    link.send(Bulk(MOST_BULK + 1))
    with pytest.raises(LinkError):  # the connection is closed, or reset
        round_trips(link)


def test_only_the_lead_has_a_task_measure(link):
    link.send(Measure("worker:0"))

    assert link.receive(Measured).problem == "does not measure"


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff",
        struct.pack("!I", 5) + b"\xff\xfe{}[",
        struct.pack("!I", 2) + b"{}",
        struct.pack("!I", 8192) + b"[" * 8192,
    ],
)
def test_what_is_no_message_ends_only_its_connection(cluster, data):
    with Answering(participant(cluster, SECOND)):
        address = ("127.0.0.1", int(cluster.worker[1].split(":")[1]))
        with call(address, ends_of(cluster, SECOND), proofs_of(SECRET), SECONDS) as connection:
            connection.sendall(data)
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(1) == b""
        link, _ = participant(cluster, FIRST).call(SECOND)
        with link:
            assert round_trips(link)


def test_a_stranger_learns_nothing(cluster):
    with Answering(participant(cluster, SECOND)), pytest.raises(ConnectError):
        participant(cluster, FIRST, OTHER).call(SECOND)
