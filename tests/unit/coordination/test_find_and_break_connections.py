"""Connections to one address are shut down, so that what waits in them fails; others are left alone."""

import contextlib
import errno
import os
import resource
import select
import socket

import pytest

from tfdist.coordination import find_and_break_connections as broken
from tfdist.coordination.find_and_break_connections import break_connections, own_sockets, peers_at

ADDRESSES = [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"), (socket.AF_INET6, "::ffff:127.0.0.1")]


@contextlib.contextmanager
def connected(family, host):
    """Yield the address of a listener, and a connection of this process to it."""
    listens = family if host != "::ffff:127.0.0.1" else socket.AF_INET  # as gRPC calls an IPv4 address
    own = host.removeprefix("::ffff:")
    try:
        listener = socket.create_server((own, 0), family=listens)
    except OSError as error:
        pytest.skip(f"no {own} here: {error}")
    port = listener.getsockname()[1]
    with listener, socket.socket(family) as connection:
        connection.connect((host, port))
        yield f"[{own}]:{port}" if ":" in own else f"{own}:{port}", connection


@pytest.mark.parametrize(("family", "host"), ADDRESSES)
def test_what_waits_in_a_connection_gets_its_end(family, host):
    with (
        connected(family, host) as (address, connection),
        connected(*ADDRESSES[0]) as (_, other),
        socket.create_server(("127.0.0.1", 0)),
        socket.socket(socket.AF_UNIX),
    ):
        other.settimeout(0.1)
        assert break_connections(peers_at(address), "worker:1") == 1
        assert connection.recv(1) == b""
        with pytest.raises(TimeoutError):
            other.recv(1)


def test_a_name_that_is_unknown_has_no_connections():
    assert peers_at("no-such-host.invalid:2222") == set()


def test_a_connection_that_is_being_made_fails_at_once():
    """A listener whose queue is full does not answer, as a machine that is cut off does not."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        at = server.getsockname()
        calls = [stack.enter_context(socket.socket()) for _ in range(4)]
        for call in calls:
            call.setblocking(False)
            call.connect_ex(at)
        waiting = calls[-1]
        with pytest.raises(OSError, match="not connected"):
            waiting.getpeername()
        break_connections(peers_at(f"127.0.0.1:{at[1]}"), "worker:1")
        ready, _, _ = select.select([waiting], [], [], 0)
        assert ready


@contextlib.contextmanager
def no_free_descriptor():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@contextlib.contextmanager
def last_descriptor_taken_meanwhile():
    def dup(_):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "dup", dup)
        yield


@pytest.mark.parametrize("lacking", [no_free_descriptor, last_descriptor_taken_meanwhile])
def test_without_a_free_descriptor_it_has_to_be_tried_again(lacking, caplog):
    with connected(*ADDRESSES[0]) as (address, _):
        peers = peers_at(address)
        with lacking():
            assert break_connections(peers, "worker:1") is None
        line = "cannot look for connections to worker:1, trying again: Too many open files"
        assert line in caplog.messages
        assert break_connections(peers, "worker:1") == 1


def test_a_connection_that_is_closed_meanwhile_is_none(monkeypatch):
    with socket.socket() as closed:
        monkeypatch.setattr(broken, "own_sockets", lambda is_wanted: [(None, closed)])
        with pytest.raises(OSError, match="not connected"):
            closed.shutdown(socket.SHUT_RDWR)
        assert break_connections({("127.0.0.1", 1)}, "worker:1") == 0


def test_a_socket_stays_blocking_whatever_the_default_timeout_is():
    with connected(*ADDRESSES[0]) as (address, connection):
        peers = peers_at(address)
        socket.setdefaulttimeout(5)
        try:
            assert len(list(own_sockets(lambda found: found.peer in peers))) == 1
        finally:
            socket.setdefaulttimeout(None)
        assert os.get_blocking(connection.fileno())
