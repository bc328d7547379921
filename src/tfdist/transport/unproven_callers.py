"""Check the callers of a listener all at once: one that proves nothing delays nobody else.

A caller has one deadline for all that it must send, and there is a limited number of places for callers that
have not answered yet. A new caller always gets a place: the oldest caller of the address that has the most
loses its own. So a flood from one address takes no place from the others. Callers that have answered are
served before new ones are accepted.
"""

import logging
import os
import selectors
import socket
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tfdist.transport.authentication import PROOF_BYTES, Connection, Proofs

GREETING = b"tfdist exchange 1\n"
NONCE_BYTES = 32
HANDSHAKE_TIMEOUT = 5.0  # seconds for the whole handshake of a caller, who may be a stranger
PROVEN_TIMEOUT = 15.0  # seconds for each message of a task that is proven, which may stall for some of them
_MAX_CALLERS = 64
_SECONDS_AFTER_FAILED_ACCEPT = 0.1
_KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPALIVE": 60, "TCP_KEEPINTVL": 60, "TCP_KEEPCNT": 120}
_log = logging.getLogger("tfdist")


def set_options(connection: socket.socket) -> None:
    """Send small messages at once, and something each minute, or firewalls would forget an idle connection.

    The kernel ends a connection without an answer after two hours only, as by default: whether the other task
    is lost is for the health checks to tell. There is no TCP_USER_TIMEOUT, since it would also end one whose
    receiver only computes for long and reads nothing.
    """
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if (option := getattr(socket, name, None)) is not None:  # macOS calls the first one otherwise
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


@dataclass(eq=False)
class _Caller:
    connection: socket.socket
    host: str
    nonce: bytes
    deadline: float
    received: bytes = b""


class UnprovenCallers:
    """The callers of listeners whose handshakes are not over."""

    def __init__(self, listeners: Sequence[socket.socket], ends: bytes, proofs: Proofs) -> None:
        """Accept the callers of listeners that never block.

        Raises:
            ValueError: A listener is closed.
        """
        self._ends, self._proofs = ends, proofs
        self._callers: list[_Caller] = []  # in the order of arrival
        self._is_failure_reported = False
        self._selector = selectors.DefaultSelector()
        for listener in listeners:
            self._selector.register(listener, selectors.EVENT_READ, listener)

    def proven(self, seconds: float) -> Iterator[Connection]:
        """Wait for what callers send, at most so many seconds; yield each connection that is proven."""
        ready = [key.data for key, _ in self._selector.select(seconds)]
        for caller in ready:
            if isinstance(caller, _Caller) and self._is_proven(caller):
                try:
                    challenge = self._challenge(caller)
                    connection = self._proofs.connection(caller.connection, *challenge, is_caller=False)
                except OSError as error:  # such as too many open files, of which TLS needs some
                    self._disconnect(caller, str(error))
                    continue
                self._forget(caller)
                yield connection
        for listener in ready:
            if not isinstance(listener, _Caller):
                self._accept(listener)
        now = time.monotonic()
        for caller in [late for late in self._callers if late.deadline < now]:
            self._disconnect(caller, "sends too slowly")

    def close(self) -> None:
        """Disconnect all callers."""
        for caller in list(self._callers):
            self._disconnect(caller, "the listener is closed")
        self._selector.close()

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, address = listener.accept()
        except BlockingIOError:  # the caller has left again
            return
        except OSError as error:  # such as too many open files: a caller less makes room
            if not self._is_failure_reported:
                _log.warning("cannot accept a connection, trying again: %s", error.strerror)
            self._is_failure_reported = True
            self._free_place()
            time.sleep(_SECONDS_AFTER_FAILED_ACCEPT)
            return
        self._is_failure_reported = False
        if len(self._callers) >= _MAX_CALLERS:
            self._free_place()
        deadline = time.monotonic() + HANDSHAKE_TIMEOUT
        caller = _Caller(connection, str(address[0]), os.urandom(NONCE_BYTES), deadline)
        connection.setblocking(False)
        self._callers.append(caller)
        self._selector.register(connection, selectors.EVENT_READ, caller)
        try:
            set_options(connection)  # macOS refuses if reset
            connection.sendall(GREETING + caller.nonce)  # it fits into the socket's buffer
        except OSError as error:
            self._disconnect(caller, str(error))

    def _is_proven(self, caller: _Caller) -> bool:
        """Read what a caller has sent; return whether it knows the secret, else disconnect it."""
        try:
            # No byte more than the proof: what follows is for whoever gets the connection.
            data = caller.connection.recv(NONCE_BYTES + PROOF_BYTES - len(caller.received))
            if not data:
                raise ConnectionError("closes the connection")
            caller.received += data
            if len(caller.received) < NONCE_BYTES + PROOF_BYTES:
                return False
            challenge = self._challenge(caller)
            if not self._proofs.is_proven(caller.received[NONCE_BYTES:], b"caller", *challenge):
                raise ConnectionRefusedError("does not know the secret")
            caller.connection.sendall(self._proofs.prove(b"called", *challenge))
            caller.connection.settimeout(PROVEN_TIMEOUT)
        except BlockingIOError:
            return False
        except OSError as error:
            self._disconnect(caller, str(error))
            return False
        return True

    def _challenge(self, caller: _Caller) -> tuple[bytes, bytes, bytes]:
        return self._ends, caller.nonce, caller.received[:NONCE_BYTES]

    def _free_place(self) -> None:
        """Disconnect the oldest caller of the address that has the most."""
        for host, _ in Counter(caller.host for caller in self._callers).most_common(1):
            oldest = next(caller for caller in self._callers if caller.host == host)
            self._disconnect(oldest, "another caller needs its place")

    def _disconnect(self, caller: _Caller, why: str) -> None:
        _log.info("closed the connection from %s: %s", caller.host, why)
        self._forget(caller)
        caller.connection.close()

    def _forget(self, caller: _Caller) -> None:
        self._callers.remove(caller)
        self._selector.unregister(caller.connection)
