"""A process without a TensorFlow server answers health checks, whoever else calls it."""

import contextlib
import resource
import socket

import pytest

from tfdist.cluster.config import ClusterConfig
from tfdist.coordination import grpc_health_probe
from tfdist.coordination.answer_health_checks import answering_health_checks
from tfdist.coordination.find_and_break_connections import peers_at, peers_last_at
from tfdist.coordination.grpc_health_probe import answers


@pytest.fixture
def at():
    """Yield an address that no other process takes meanwhile."""
    cluster = ClusterConfig.local(workers=1)
    yield cluster.worker[0]
    del cluster  # until now it kept the port


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    monkeypatch.setattr(grpc_health_probe, "_ANSWER_TIMEOUT", 60.0)


def test_it_answers_as_long_as_the_block_runs(at):
    with answering_health_checks(at):
        assert [answers(at) for _ in range(40)] == [True] * 40
    assert answers(at) is False


def test_callers_that_say_nothing_hold_nobody_up(at):
    host, port = at.split(":")
    with answering_health_checks(at), contextlib.ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(socket.create_connection((host, int(port))))
        assert answers(at)


def test_a_port_that_is_taken_is_no_error(monkeypatch):
    monkeypatch.setattr(grpc_health_probe, "_ANSWER_TIMEOUT", 0.2)
    with socket.create_server(("", 0)) as server:
        at = f"127.0.0.1:{server.getsockname()[1]}"
        with answering_health_checks(at):
            assert answers(at) is None  # the other one accepts and says nothing


def test_a_task_is_asked_where_it_was_last_while_no_name_server_answers(monkeypatch, at):
    port = at.rpartition(":")[2]
    at, getaddrinfo, errors = f"localhost:{port}", socket.getaddrinfo, []

    def look_up(*args, **options):
        if errors:
            raise socket.gaierror(errors[0], "Temporary failure in name resolution")
        return getaddrinfo(*args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    with answering_health_checks(at):
        errors.append(socket.EAI_AGAIN)
        assert answers(at) is None
        errors.clear()
        assert answers(at) is True
        errors.append(socket.EAI_AGAIN)
        assert answers(at) is True
        assert ("127.0.0.1", int(port)) in peers_at(at)
        errors[0] = socket.EAI_NONAME
        assert answers(at) is None
        assert peers_at(at) == set()
        assert ("127.0.0.1", int(port)) in peers_last_at(at)
    errors[0] = socket.EAI_AGAIN
    assert answers(at) is False


def test_a_task_is_not_silent_because_this_process_can_open_no_more_files(caplog):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
        try:
            assert answers(address) is True
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        assert f"cannot ask whether {address} answers: too many open files" in caplog.text
        listener.shutdown(socket.SHUT_RDWR)  # it keeps the port
        assert answers(address) is False
