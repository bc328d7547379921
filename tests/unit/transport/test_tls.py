"""What is encrypted comes as it was sent; what was changed on the way does not come at all."""

import itertools
import os
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tfdist.errors import ConfigError
from tfdist.transport import tls
from tfdist.transport.tls import TlsConnection, check_tls

pytest.importorskip("cryptography")
pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs Linux")

SEED, SECONDS = bytes(range(32)), 20
TEXT = b"the weights of this model " * 40_000  # 1 MB, many records


def connected(stack_of):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        caller = socket.create_connection(listener.getsockname(), timeout=SECONDS)
        called, _ = listener.accept()
    called.settimeout(SECONDS)
    stack_of.extend((caller, called))
    return caller, called


@pytest.fixture
def sockets():
    opened = []
    yield opened
    for each in opened:
        each.close()


@pytest.fixture
def ends(sockets):
    """Return both ends of an encrypted connection, after the handshake."""
    caller, called = connected(sockets)
    return shaken(TlsConnection(caller, SEED, is_caller=True), TlsConnection(called, SEED, is_caller=False))


def shaken(caller, called):
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(lambda: (called.recv(2), called.sendall(b"no"))[0])
        caller.sendall(b"hi")
        assert (caller.recv(2), answer.result(SECONDS)) == (b"no", b"hi")
    return caller, called


def received(connection, count, flags=socket.MSG_WAITALL):
    """Receive this many bytes, or those that come before the connection ends."""
    into, filled = memoryview(bytearray(count)), 0
    while filled < count:
        more = connection.recv_into(into[filled:], 0, flags)
        if not more:
            break
        filled += more
    return bytes(into[:filled])


@pytest.mark.parametrize("flags", [0, socket.MSG_WAITALL])
def test_both_ends_send_and_receive_at_once(ends, flags):
    with ThreadPoolExecutor(4) as pool:
        sent = [pool.submit(end.sendall, text) for end, text in zip(ends, (TEXT, TEXT[::-1]), strict=True)]
        came = [pool.submit(received, end, len(TEXT), flags) for end in ends]
        assert [each.result(SECONDS) for each in came] == [TEXT[::-1], TEXT]
        assert [each.result(SECONDS) for each in sent] == [None, None]


@pytest.mark.parametrize("size", [1, 45, 16_383, 16_384, 16_385, 262_144, 262_145])
def test_messages_of_all_sizes_come_in_order(ends, size):
    messages = [bytes([number]) * size for number in range(5)]
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(lambda: [ends[0].sendall(each) for each in messages])
        assert [received(ends[1], size) for _ in messages] == messages
        sending.result(SECONDS)


def test_bytes_that_find_no_room_are_sent_later(ends):
    sender, reader = ends
    sender.setblocking(False)
    sent, was_full = 0, False
    with ThreadPoolExecutor(1) as pool:
        reading = None
        while sent < 8 * len(TEXT):
            rest = memoryview(TEXT)[sent % len(TEXT) :]
            try:
                sent += sender.send(rest)
            except BlockingIOError:
                was_full = True
                reading = reading or pool.submit(received, reader, 8 * len(TEXT))
        assert was_full
        assert reading.result(SECONDS) == 8 * TEXT


def test_one_that_never_blocks_says_that_nothing_has_come(ends):
    sender, reader = ends
    reader.setblocking(False)
    into = memoryview(bytearray(10))
    with pytest.raises(BlockingIOError):
        reader.recv_into(into)
    sender.sendall(b"12345")
    reader.settimeout(SECONDS)
    assert (reader.recv_into(into), bytes(into[:5])) == (5, b"12345")


@pytest.mark.parametrize("seed", [bytes(32), SEED[::-1]])
def test_no_other_certificate_is_accepted(sockets, seed):
    caller, called = connected(sockets)
    ends = TlsConnection(caller, SEED, is_caller=True), TlsConnection(called, seed, is_caller=False)

    def exchange(end):
        try:
            end.sendall(b"hi")
            return end.recv(2)
        except ConnectionError:
            return None
        finally:
            end.shutdown(socket.SHUT_RDWR)

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(exchange, ends)) == [None, None]


class Wire:
    """Two ends with a man in the middle, who gets each record that the caller sends, and may change it."""

    def __init__(self, sockets):
        near, far = connected(sockets)
        self._from_caller, self._to_called = far, connected(sockets)
        self.caller = TlsConnection(near, SEED, is_caller=True)
        self.called = TlsConnection(self._to_called[1], SEED, is_caller=False)
        self.change = lambda records: records
        self.seen = b""
        for source, target, way in (
            (self._from_caller, self._to_called[0], self._changed),
            (self._to_called[0], self._from_caller, lambda records: records),
        ):
            threading.Thread(target=self._relay, args=(source, target, way), daemon=True).start()
        shaken(self.caller, self.called)

    def _changed(self, records):
        self.seen += b"".join(records)
        return self.change(records)

    def _relay(self, source, target, way):
        received = b""
        try:
            while data := source.recv(1 << 20):
                received, records = received + data, []
                while len(received) >= 5 and len(received) >= (
                    size := 5 + int.from_bytes(received[3:5], "big")
                ):
                    records.append(received[:size])
                    received = received[size:]
                target.sendall(b"".join(way(records)))
        except OSError:
            pass  # the test is over
        finally:
            target.close()


CHANGES = {
    "a bit": lambda record, kept: [record[:-9] + bytes([record[-9] ^ 1]) + record[-8:]],
    "a shorter record": lambda record, kept: [
        record[:3] + (len(record) - 6).to_bytes(2, "big") + record[5:-1]
    ],
    "twice": lambda record, kept: [record, record],
    "left out": lambda record, kept: [],
    "an earlier one": lambda record, kept: [kept],
    "plain": lambda record, kept: [b"\x17\x03\x03\x00\x05hello"],
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_changed_on_the_way_does_not_come(sockets, change):
    wire, count, first = Wire(sockets), itertools.count(), []

    def changed(records):
        out = []
        for record in records:
            first[:] = first or [record]
            out += CHANGES[change](record, first[0]) if next(count) == 7 else [record]
        return out

    wire.change = changed
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(wire.caller.sendall, TEXT)
        came = b""
        try:
            while len(came) < len(TEXT):
                came += received(wire.called, 1000)
        except ConnectionAbortedError as error:
            why = error.strerror
        wire.called.close()
        sending.exception(SECONDS)
    assert "is not what it has encrypted" in why
    assert came
    assert TEXT.startswith(came)
    assert len(came) < 10 * 16_384


def test_nobody_reads_it_on_the_way(sockets):
    wire = Wire(sockets)
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(wire.caller.sendall, TEXT)
        assert received(wire.called, len(TEXT)) == TEXT
        sending.result(SECONDS)
    assert len(TEXT) < len(wire.seen) < 1.01 * len(TEXT)
    assert TEXT[:26] not in wire.seen


def test_a_connection_that_ends_early_is_over(ends):
    sender, reader = ends
    sender.sendall(b"12345")
    sender.shutdown(socket.SHUT_WR)
    assert received(reader, 10) == b"12345"
    assert received(reader, 10) == b""


def test_both_ends_make_the_same_certificate():
    assert tls._certificate(SEED) == tls._certificate(SEED) != tls._certificate(SEED[::-1])


def test_a_missing_package_is_one_line(monkeypatch):
    check_tls()
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(
        ConfigError, match=r"communication.encryption tls: .* cryptography.*pip install 'tfdist\[tls\]'"
    ):
        check_tls()
