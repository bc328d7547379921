"""What the kernel counts of this process's connections, on real ones."""

import contextlib
import errno
import os
import socket
import sys
import threading
import time

import pytest

from tfdist.coordination import bytes_sent
from tfdist.coordination.bytes_sent import SentBytesCounter

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel does not tell")
OPENED = 1  # the kernel counts the opening of a connection like a byte


@contextlib.contextmanager
def connected(host="127.0.0.1"):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with (
        socket.create_server((host, 0), family=family) as server,
        socket.create_connection(server.getsockname()[:2]) as caller,
    ):
        called, _ = server.accept()
        with called:
            yield server.getsockname()[1], caller, called


def send(sender, receiver, count):
    sender.sendall(bytes(count))
    while count:
        count -= len(receiver.recv(count))


def counted(connections, least):
    """Return the count of sent bytes once `least` of them are acknowledged, or after five seconds."""
    end = time.monotonic() + 5
    while (sent := connections.bytes_sent()) < least and time.monotonic() < end:
        time.sleep(0.01)
    return sent


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_each_end_counts_what_it_has_sent(host):
    if host == "::1" and not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    with connected(host) as (port, caller, called):
        # Both ends are this process's; with the machine, or only what comes in at the port.
        both, serving = SentBytesCounter(0, [host]), SentBytesCounter(port, [])
        before = both.bytes_sent() - OPENED
        send(caller, called, 300_000)
        send(called, caller, 50_000)
        assert counted(both, before + 350_000) == before + 350_000 + OPENED
        assert counted(serving, 50_000) == 50_000
        send(called, caller, 1_000)
        assert counted(serving, 51_000) == 51_000


def test_connections_with_other_machines_are_not_counted():
    with connected("127.0.0.2") as (_, caller, called), connected("127.0.0.3") as (_, stranger, strange):
        connections = SentBytesCounter(0, ["127.0.0.2"])
        send(stranger, strange, 1_000)
        assert connections.bytes_sent() == OPENED
        send(caller, called, 10)
        assert counted(connections, 10) == 10 + OPENED


def test_an_address_of_ipv4_in_the_form_of_ipv6_is_the_same_machine():
    with (
        socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server,
        socket.create_connection(("127.0.0.1", server.getsockname()[1])) as caller,
    ):
        called, (address, *_) = server.accept()
        with called:
            assert address == "::ffff:127.0.0.1"
            connections = SentBytesCounter(0, ["localhost"])
            before = connections.bytes_sent()
            send(called, caller, 1_000)
            assert counted(connections, before + 1_000) == before + 1_000


def test_a_closed_connection_counts_for_what_it_had_sent():
    with connected() as (port, caller, called), SentBytesCounter(port, []) as connections:
        send(called, caller, 1_000)
        assert counted(connections, 1_000) == 1_000
        caller.close()
        called.close()
        with socket.socket() as again:  # which gets the number of the one that was closed
            assert connections.bytes_sent() == 1_000, again


def test_closed_connections_are_kept_as_one_number():
    with socket.create_server(("127.0.0.1", 0)) as server:
        connections = SentBytesCounter(server.getsockname()[1], [])
        for number in range(1, 6):
            with socket.create_connection(server.getsockname()) as caller, server.accept()[0] as called:
                send(called, caller, 1_000)
                assert counted(connections, number * 1_000) == number * 1_000
                assert len(connections._sent) == 1
        assert connections.bytes_sent() == 5_000
        assert not connections._sent


def test_a_block_looks_by_itself(monkeypatch):
    monkeypatch.setattr(bytes_sent, "_SECONDS_BETWEEN_SAMPLES", 0.01)
    with connected() as (port, caller, called), SentBytesCounter(port, []) as connections:
        send(called, caller, 1_000)
        end = time.monotonic() + 30
        while sum(connections._sent.values()) < 1_000 and time.monotonic() < end:
            time.sleep(0.01)
        caller.close()
        called.close()
        assert connections.bytes_sent() == 1_000


def test_a_socket_stays_blocking_whatever_the_default_timeout_is():
    with connected() as (_, caller, called):
        send(caller, called, 1_000)
        socket.setdefaulttimeout(5)
        try:
            assert counted(SentBytesCounter(0, ["127.0.0.1"]), 1_000) >= 1_000
        finally:
            socket.setdefaulttimeout(None)
        assert os.get_blocking(caller.fileno())
        assert os.get_blocking(called.fileno())


def test_a_task_without_files_counts_when_it_has_some(monkeypatch):
    looks, has_looked = [True, False], threading.Event()

    def bytes_sent(self):
        if looks.pop(0):
            raise OSError(errno.EMFILE, "Too many open files")
        looks.append(False)
        has_looked.set()

    monkeypatch.setattr(SentBytesCounter, "bytes_sent", bytes_sent)
    monkeypatch.setattr("tfdist.coordination.bytes_sent._SECONDS_BETWEEN_SAMPLES", 0.01)
    with SentBytesCounter(0, []):
        assert has_looked.wait(30)
