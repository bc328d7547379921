"""Ask whether somebody is at an address, without TensorFlow and without a session on its servers."""

import errno
import os
import socket

from tfdist.addresses import split_address

__all__ = ["answers", "connected", "reason_of", "why_silent"]

_SECONDS_FOR_AN_ANSWER = 2.0
# What an HTTP/2 client says first (RFC 9113, 3.4), and its empty SETTINGS frame. Every gRPC server answers
# with a SETTINGS frame of its own, from a thread of its own: a live process answers, and a stopped one, for
# which the kernel alone goes on accepting connections, does not.
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
_GONE = (errno.ECONNREFUSED, errno.ECONNRESET, errno.EPIPE)


def answers(address: str) -> bool | None:
    """Say whether a gRPC server is at the address: yes, no, or None where there is no telling."""
    try:
        return bool(_asked(address))
    except OSError as error:  # timeouts and unreachable hosts too: they may come back
        return False if error.errno in _GONE else None


def why_silent(address: str) -> str:
    """Say why nobody answers for a gRPC server at the address; nothing where one does."""
    try:
        return "" if _asked(address) else "hangs up"
    except OSError as error:
        return reason_of(error)


def reason_of(error: OSError) -> str:
    """Say in few words why an address could not be reached."""
    if isinstance(error, socket.gaierror):
        return f"its name is unknown ({error.strerror})"
    if error.errno is None:  # Python's own, of a socket with a timeout
        return str(error)
    return os.strerror(error.errno).lower()


def connected(address: str) -> socket.socket:
    """Connect to an address; each step on the socket has some seconds' time."""
    line = socket.create_connection(split_address(address), timeout=_SECONDS_FOR_AN_ANSWER)
    if line.getsockname() == line.getpeername():
        # Linux connects a socket to itself where it happens to have taken the very port that it looks for.
        line.close()
        raise ConnectionRefusedError(errno.ECONNREFUSED, "nobody but this socket is there")
    return line


def _asked(address: str) -> bytes:
    with connected(address) as probe:
        probe.sendall(_GREETING)
        try:
            return probe.recv(9)
        except TimeoutError:
            raise TimeoutError("accepts connections and does not answer") from None
