"""A listener lets in those who know the secret, whoever else calls it and however often."""

import contextlib
import errno
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tfdist.transport import listen_and_call, unproven_callers
from tfdist.transport.authentication import PROOF_BYTES, Proofs
from tfdist.transport.listen_and_call import Listener, call, read_exactly
from tfdist.transport.unproven_callers import GREETING, NONCE_BYTES

PROOFS, RANKS = Proofs(b"a secret of these tests", b"mark"), b"0123"
SECONDS = 300  # a busy machine is no failure


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    for module in (listen_and_call, unproven_callers):
        for name in ("HANDSHAKE_TIMEOUT", "PROVEN_TIMEOUT"):
            monkeypatch.setattr(module, name, SECONDS)


@pytest.fixture
def listener():
    """Yield a listener whose proven callers are closed, after they have been sent one byte."""

    def welcome():
        for connection in listener.callers(RANKS, PROOFS, SECONDS):
            connection.sendall(b"+")
            connection.close()

    with Listener("127.0.0.1") as listener:
        thread = threading.Thread(target=welcome)
        thread.start()
        yield listener
    thread.join(SECONDS)
    assert not thread.is_alive()


@pytest.fixture
def idle(listener):
    """Yield a function that makes connections which send nothing, and that returns them."""
    with contextlib.ExitStack() as stack:

        def connect(count, source="127.0.0.1"):
            made = [
                socket.create_connection(("127.0.0.1", listener.port), SECONDS, (source, 0))
                for _ in range(count)
            ]
            return [stack.enter_context(each) for each in made]

        yield connect


def is_let_in(listener):
    with call(("127.0.0.1", listener.port), RANKS, PROOFS, SECONDS) as connection:
        return read_exactly(connection, 1) == b"+"


def greeted(connection):
    assert read_exactly(connection, len(GREETING)) == GREETING
    return read_exactly(connection, NONCE_BYTES)


def test_idle_connections_keep_nobody_out(listener, idle):
    for count in (64, 1, 200):
        idle(count)
        assert is_let_in(listener)


def test_a_flood_that_goes_on_keeps_nobody_out(listener, idle):
    is_over = threading.Event()

    def flood():
        while not is_over.wait(0.02):
            idle(1)

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        idle(64)
        assert all(is_let_in(listener) for _ in range(10))
    finally:
        is_over.set()
        thread.join(SECONDS)


def test_a_flood_of_one_address_takes_no_place_of_another_one(listener, idle):
    [slow] = idle(1)
    theirs, ours = greeted(slow), bytes(NONCE_BYTES)
    for connection in (flood := idle(200, "127.0.0.2"))[-64:]:
        greeted(connection)
    slow.sendall(ours + PROOFS.prove(b"caller", RANKS, theirs, ours))
    answer = read_exactly(slow, PROOF_BYTES)
    assert PROOFS.is_proven(answer, b"called", RANKS, theirs, ours)
    assert read_exactly(flood[0], len(GREETING)) == GREETING
    with pytest.raises(ConnectionError):  # the oldest of that address had to go
        read_exactly(flood[0], NONCE_BYTES + 1)


def test_a_caller_that_drips_has_one_deadline_for_all(monkeypatch, listener, idle):
    monkeypatch.setattr(unproven_callers, "HANDSHAKE_TIMEOUT", 0.5)
    [slow] = idle(1)
    greeted(slow)
    sent = 0
    with contextlib.suppress(ConnectionError):
        while sent < NONCE_BYTES + PROOF_BYTES - 1:
            slow.sendall(b"x")
            sent += 1
            time.sleep(0.1)
    assert sent < NONCE_BYTES + PROOF_BYTES - 1
    monkeypatch.setattr(unproven_callers, "HANDSHAKE_TIMEOUT", SECONDS)
    assert is_let_in(listener)


def test_a_called_task_that_stalls_is_waited_for_as_long_as_one_that_cannot_be_reached(monkeypatch):
    monkeypatch.setattr(listen_and_call, "HANDSHAKE_TIMEOUT", 0.01)
    with Listener("127.0.0.1") as listener, ThreadPoolExecutor(1) as pool:
        calling = pool.submit(is_let_in, listener)
        with pytest.raises(TimeoutError):
            calling.result(0.3)
        with listener.caller(RANKS, PROOFS, SECONDS) as connection:
            connection.sendall(b"+")
        assert calling.result(SECONDS)


@pytest.mark.parametrize("words", [b"GET / HTTP/1.1\r\n\r\n" * 9, b"", b"x" * (NONCE_BYTES + PROOF_BYTES)])
def test_who_does_not_know_the_secret_is_disconnected(listener, idle, words):
    [stranger] = idle(1)
    greeted(stranger)
    with contextlib.suppress(OSError):  # it is disconnected already
        stranger.sendall(words)
        stranger.shutdown(socket.SHUT_WR)
    with contextlib.suppress(ConnectionResetError):
        assert stranger.recv(1) == b""
    assert is_let_in(listener)


# A task that has no file left, and has some again when the other task has called.
_WITHOUT_FILES = """
import contextlib, os, resource, sys, threading, time
from tfdist.transport.authentication import Proofs
from tfdist.transport.listen_and_call import Listener
from tfdist.transport.unproven_callers import UnprovenCallers
listener = Listener("127.0.0.1")
proven, is_at_work = UnprovenCallers.proven, threading.Event()
def proven_and_noted(*words):
    is_at_work.set()
    return proven(*words)
UnprovenCallers.proven = proven_and_noted
proofs = Proofs(b"a secret of these tests", b"mark")
resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
def free():
    sys.stdin.readline()
    time.sleep(0.5)
    for file in files: os.close(file)
callers, files = listener.callers(b"0123", proofs, 300), []
threading.Thread(target=free).start()
def take():
    is_at_work.wait()
    with contextlib.suppress(OSError):
        while True: files.append(os.open(os.devnull, os.O_RDONLY))
    print(listener.port, flush=True)
threading.Thread(target=take).start()
next(callers).sendall(b"+")
"""


def test_a_task_without_files_listens_again_when_it_has_some():
    command = [sys.executable, "-c", _WITHOUT_FILES]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        port = int(process.stdout.readline())
        with socket.create_connection(("127.0.0.1", port), SECONDS) as stranger:
            stranger.settimeout(0.2)
            with pytest.raises(TimeoutError):  # the task cannot accept it
                stranger.recv(1)
            process.stdin.write(b"\n")
            process.stdin.flush()
            with call(("127.0.0.1", port), RANKS, PROOFS, SECONDS) as connection:
                assert read_exactly(connection, 1) == b"+"
        _, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, errors
    assert b"cannot accept a connection, trying again: Too many open files" in errors


def test_a_caller_that_is_gone_when_it_is_accepted_ends_no_listener(listener, monkeypatch):
    refusals = [OSError(errno.EINVAL, "Invalid argument")]  # as macOS says of a connection that is reset

    class Socket(socket.socket):
        def setsockopt(self, *args):
            if refusals and threading.current_thread() is not threading.main_thread():
                raise refusals.pop()
            super().setsockopt(*args)

    monkeypatch.setattr(socket, "socket", Socket)
    with socket.create_connection(("127.0.0.1", listener.port), SECONDS) as caller:
        assert caller.recv(1) == b""
    assert is_let_in(listener)


@pytest.fixture
def names(monkeypatch):
    """Return the hosts by name that the system knows in a test."""
    known, look_up = {}, socket.getaddrinfo

    def getaddrinfo(host, *args, **options):
        return [entry for each in known.get(host, [host]) for entry in look_up(each, *args, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return known


def answering(listener):
    """Return which of some addresses of this machine the listener listens at.

    At another one, another process may listen on the same port.
    """
    own = {each.getsockname()[0] for each in listener._listeners}
    hosts = ["127.0.0.1", "127.0.0.2", "127.0.1.1"]
    found = [host for host in hosts if own & {host, "0.0.0.0", "::"}]
    for host in found:
        with socket.create_connection((host, listener.port), SECONDS):
            pass
    return found


def test_it_listens_at_all_addresses_of_a_host_and_at_no_other(names):
    names["own"] = ["127.0.0.2", "127.0.1.1", "203.0.113.1"]  # the last is not this machine's
    names["other"] = ["127.0.0.1"]
    with Listener("own", ["other"]) as listener:
        assert answering(listener) == ["127.0.0.2", "127.0.1.1"]
        calling = threading.Thread(target=lambda: called.append(is_let_in_at("127.0.1.1", listener.port)))
        called = []
        calling.start()
        with listener.caller(RANKS, PROOFS, SECONDS) as connection:
            connection.sendall(b"+")
        calling.join(SECONDS)
        assert called == [True]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other options")
def test_firewalls_do_not_forget_an_idle_connection():
    with Listener("127.0.0.1") as listener:
        pair = []
        called = threading.Thread(target=lambda: pair.append(listener.caller(RANKS, PROOFS, SECONDS)))
        called.start()
        pair.append(call(("127.0.0.1", listener.port), RANKS, PROOFS, SECONDS))
        called.join(SECONDS)
    for connection in pair:
        with connection:
            assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
    assert len(pair) == 2


def is_let_in_at(host, port):
    with call((host, port), RANKS, PROOFS, SECONDS) as connection:
        return read_exactly(connection, 1) == b"+"


@pytest.mark.parametrize(
    ("own", "other", "listens_at"),
    [
        ("own", "elsewhere", ["127.0.0.1", "127.0.0.2", "127.0.1.1"]),  # as Debian calls itself
        ("own", "beside", ["127.0.1.1"]),
        ("own", "unknown.invalid", ["127.0.1.1"]),
        ("127.0.1.1", "elsewhere", ["127.0.1.1"]),  # as behind a tunnel
        ("localhost", "elsewhere", ["127.0.0.1"]),
    ],
)
def test_a_host_that_calls_itself_by_a_loopback_address_listens_where_others_reach_it(
    names, own, other, listens_at
):
    names.update({"own": ["127.0.1.1"], "elsewhere": ["203.0.113.1"], "beside": ["127.0.0.1"]})
    with Listener(own, [other]) as listener:
        assert answering(listener) == listens_at


def test_a_port_that_is_taken_at_another_address_is_not_used(names, monkeypatch):
    names["own"] = ["127.0.0.1", "127.0.0.2"]
    create, refusals = socket.create_server, [OSError(errno.EADDRINUSE, "Address already in use")]

    def create_server(address, **options):
        if address[1] and refusals:
            raise refusals.pop()
        return create(address, **options)

    monkeypatch.setattr(socket, "create_server", create_server)
    with Listener("own") as listener:
        assert answering(listener) == ["127.0.0.1", "127.0.0.2"]
