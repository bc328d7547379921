"""Check whether a process answers at an address."""

import errno
import logging
import os
import socket
import time
from collections.abc import Mapping

from tfdist.cluster.addresses_and_free_ports import look_up

SECONDS_BETWEEN_CHECKS = 1.0
SILENCE_LIMIT = 10.0  # seconds, TensorFlow's own limit for its tasks
_MOST_COUNTED_AT_ONCE = 5.0  # this process itself may have been stopped for a while
_ANSWER_TIMEOUT = 2.0
HTTP2_SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"  # an empty SETTINGS frame
# The first bytes of an HTTP/2 client (RFC 9113, 3.4). Every gRPC server answers with a SETTINGS frame, from a
# separate thread. So a live process answers. A stopped process does not, although the kernel still accepts
# connections for it.
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + HTTP2_SETTINGS
_GONE = (errno.ECONNREFUSED, errno.ECONNRESET, errno.EPIPE)
_NO_ROOM_HERE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_log = logging.getLogger("tfdist")


class SilenceClock:
    """Count the seconds for which a task has not answered."""

    def __init__(self) -> None:
        self._seconds, self._checked_at = 0.0, time.monotonic()

    def after(self, is_alive: bool | None, most: float = float("inf")) -> float:
        """Return the seconds of silence after one more check.

        At most `most` seconds of the silence before the last check count, and as many of the time since it.
        """
        passed, self._checked_at = time.monotonic() - self._checked_at, time.monotonic()
        elapsed = min(passed, most, _MOST_COUNTED_AT_ONCE)
        self._seconds = 0.0 if is_alive else min(self._seconds, most) + elapsed
        return self._seconds


def answers(address: str) -> bool | None:
    """Return whether a gRPC server answers at the address: True, False, or None where that is unknown.

    Where this process cannot ask, because it has too many open files, the server counts as well: silence is
    the other task's.
    """
    try:
        return bool(_first_bytes(address))
    except OSError as error:  # None for timeouts and unreachable hosts: they may come back
        if error.errno in _NO_ROOM_HERE:
            _log.warning("cannot ask whether %s answers: %s", address, reason_of(error))
            return True
        return False if error.errno in _GONE else None


def why_silent(address: str) -> str:
    """Return why no gRPC server answers at the address; an empty string where one does."""
    try:
        return "" if _first_bytes(address) else "closes the connection"
    except OSError as error:
        return reason_of(error)


def reason_of(error: OSError) -> str:
    """Return in few words why an address could not be reached."""
    if isinstance(error, socket.gaierror):
        return f"its name is unknown ({error.strerror})"
    if error.errno is None:  # Python's own error, of a socket with a timeout
        return str(error)
    return os.strerror(error.errno).lower()


def connected(address: str) -> socket.socket:
    """Return a socket connected to an address; each operation on the socket has a timeout of some seconds."""
    connection = _connect(address)
    if connection.getsockname() == connection.getpeername():
        # Linux connects a socket to itself if the system chose, as its local port, the very port that it
        # connects to.
        connection.close()
        raise ConnectionRefusedError(errno.ECONNREFUSED, "only this socket itself is there")
    return connection


def _connect(address: str) -> socket.socket:
    failure = OSError(f"{address} stands for no host")
    for family, kind, protocol, _, host in look_up(address):
        connection = socket.socket(family, kind, protocol)
        connection.settimeout(_ANSWER_TIMEOUT)
        try:
            connection.connect(host)
            return connection
        except OSError as error:
            connection.close()
            failure = error
    raise failure


def _first_bytes(address: str) -> bytes:
    with connected(address) as probe:
        probe.sendall(_HTTP2_PREFACE)
        try:
            return probe.recv(9)
        except TimeoutError:
            raise TimeoutError("accepts connections and does not answer") from None


class ServerSilence:
    """The silence of neighbours' TensorFlow servers; a server answers while its task computes."""

    def __init__(
        self, addresses: Mapping[str, str], timeout: float | None, limit: float = SILENCE_LIMIT
    ) -> None:
        """Store which servers to ask.

        Args:
            addresses: The neighbours' addresses in the cluster, by their names.
            timeout: Seconds that an exchange may stand still even if the servers answer; None for no limit.
            limit: Seconds of silence after which a server is lost.
        """
        self._addresses, self._timeout, self._limit = addresses, timeout, limit
        self._clocks = {name: SilenceClock() for name in addresses}

    def why_lost(self, seconds: float) -> str:
        """Return why an exchange that has stood still for some seconds will not continue; empty if it may."""
        if self._timeout is not None and seconds >= self._timeout:
            return f"nothing came for {seconds:.0f} s, and communication.timeout is {self._timeout:g} s"
        for name, address in self._addresses.items():
            silent_for = self._clocks[name].after(answers(address), most=seconds)
            if silent_for >= self._limit:
                return f"{name} has been silent for {silent_for:.0f} s"
        return ""
