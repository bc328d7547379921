"""Ask whether somebody is at an address, without TensorFlow and without a session on its servers."""

import errno
import socket

from tfdist.addresses import split_address

__all__ = ["answers"]

_SECONDS_FOR_AN_ANSWER = 2.0
# What an HTTP/2 client says first (RFC 9113, 3.4), and its empty SETTINGS frame. Every gRPC server answers
# with a SETTINGS frame of its own, from a thread of its own: a live process answers, and a stopped one, for
# which the kernel alone goes on accepting connections, does not.
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
_GONE = (errno.ECONNREFUSED, errno.ECONNRESET, errno.EPIPE)


def answers(address: str) -> bool | None:
    """Say whether a gRPC server is at the address: yes, no, or None where there is no telling."""
    try:
        with socket.create_connection(split_address(address), timeout=_SECONDS_FOR_AN_ANSWER) as probe:
            probe.sendall(_GREETING)
            return bool(probe.recv(9))
    except OSError as error:  # timeouts and unreachable hosts too: they may come back
        return False if error.errno in _GONE else None
