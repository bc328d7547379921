"""Check whether a process answers at an address, without TensorFlow and without a session on its servers."""

import errno
import os
import socket
import time

from tfdist.cluster.addresses_and_free_ports import split_address

__all__ = [
    "HTTP2_SETTINGS",
    "SECONDS_BETWEEN_CHECKS",
    "SILENCE_LIMIT",
    "SilenceClock",
    "answers",
    "connected",
    "reason_of",
    "why_silent",
]

SECONDS_BETWEEN_CHECKS = 1.0
SILENCE_LIMIT = 10.0  # seconds, TensorFlow's own limit for its tasks
_MOST_COUNTED_AT_ONCE = 5.0  # this process itself may have been stopped for a while
_ANSWER_TIMEOUT = 2.0
HTTP2_SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"  # an empty SETTINGS frame
# What an HTTP/2 client sends first (RFC 9113, 3.4). Every gRPC server answers with a SETTINGS frame, from a
# separate thread. So a live process answers. A stopped process does not, although the kernel still accepts
# connections for it.
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + HTTP2_SETTINGS
_GONE = (errno.ECONNREFUSED, errno.ECONNRESET, errno.EPIPE)


class SilenceClock:
    """Count the seconds for which a task has not answered."""

    def __init__(self) -> None:
        self._seconds, self._checked_at = 0.0, time.monotonic()

    def after(self, is_alive: bool | None, most: float = float("inf")) -> float:
        """Return the seconds of silence after one more check, at most so many."""
        passed, self._checked_at = time.monotonic() - self._checked_at, time.monotonic()
        elapsed = min(passed, most, _MOST_COUNTED_AT_ONCE)
        self._seconds = 0.0 if is_alive else min(self._seconds, most) + elapsed
        return self._seconds


def answers(address: str) -> bool | None:
    """Return whether a gRPC server answers at the address: True, False, or None where that is unknown."""
    try:
        return bool(_first_bytes(address))
    except OSError as error:  # None for timeouts and unreachable hosts: they may come back
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
    connection = socket.create_connection(split_address(address), timeout=_ANSWER_TIMEOUT)
    if connection.getsockname() == connection.getpeername():
        # Linux connects a socket to itself if the system chose, as its local port, the very port that it
        # connects to.
        connection.close()
        raise ConnectionRefusedError(errno.ECONNREFUSED, "only this socket itself is there")
    return connection


def _first_bytes(address: str) -> bytes:
    with connected(address) as probe:
        probe.sendall(_HTTP2_PREFACE)
        try:
            return probe.recv(9)
        except TimeoutError:
            raise TimeoutError("accepts connections and does not answer") from None
