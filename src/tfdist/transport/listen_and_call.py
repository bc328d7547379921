"""Connect a task with another one: with both neighbours in the ring, or with a parameter server.

The system chooses the port, on the task's own address in the cluster. In a ring the port is open only until
the previous task has connected. Both ends of a connection prove that they know the cluster's secret: each
answers a random challenge of the other. A caller without the secret is disconnected, and delays nobody
else.
"""

import contextlib
import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Iterator

from tfdist.coordination.health import reason_of
from tfdist.transport.authentication import PROOF_BYTES, Proofs

__all__ = ["ConnectError", "ExchangeError", "Listener", "call", "read_exactly"]

_GREETING = b"tfdist exchange 1\n"
_NONCE_BYTES = 32
_HANDSHAKE_TIMEOUT = 5.0
_MAX_UNPROVEN_CALLERS = 64  # at a time
_SECONDS_BETWEEN_POLLS = 0.1
_log = logging.getLogger("tfdist")


class ExchangeError(ConnectionError):
    """A task is lost, or the two ends of a connection are not at the same exchange."""


class ConnectError(Exception):
    """A task is not connected to another one; the text is the reason."""


class Listener:
    """A listener for other tasks, open for as long as the block lasts.

    Attributes:
        port: The port that it listens on.
    """

    def __init__(self, host: str) -> None:
        """Listen on this address, and on no other.

        Raises:
            ConnectError: This task cannot listen on the address.
        """
        try:
            family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
            self._listener = socket.create_server(address[:2], family=family)
            self._listener.settimeout(_SECONDS_BETWEEN_POLLS)
        except OSError as error:
            raise ConnectError(f"cannot listen on {host}: {reason_of(error)}") from error
        self.port: int = self._listener.getsockname()[1]
        self._is_open = True

    def __enter__(self) -> "Listener":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Accept no more connections."""
        self._is_open = False
        self._listener.close()

    def caller(self, ranks: bytes, proofs: Proofs, seconds: float) -> socket.socket:
        """Wait for the task that can prove that the connection is between these ranks.

        Raises:
            ConnectError: No such task has connected in time.
        """
        for connection in self.callers(ranks, proofs, seconds):
            return connection
        raise ConnectError("no task that knows the secret has connected")

    def callers(self, ranks: bytes, proofs: Proofs, seconds: float = float("inf")) -> Iterator[socket.socket]:
        """Yield each connection that comes in time, and is proven to be between these ranks."""
        proven: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()
        slots = threading.Semaphore(_MAX_UNPROVEN_CALLERS)
        deadline = time.monotonic() + seconds
        try:
            while self._is_open and time.monotonic() < deadline:
                with contextlib.suppress(queue.Empty):
                    yield proven.get_nowait()
                try:
                    connection, _ = self._listener.accept()
                except TimeoutError:
                    continue
                except OSError:
                    if not self._is_open:
                        return
                    raise
                # One thread per caller: a caller that sends nothing delays nobody else.
                if slots.acquire(blocking=False):
                    arguments = (connection, ranks, proofs, proven, slots)
                    threading.Thread(target=_authenticate, args=arguments, daemon=True).start()
                else:
                    connection.close()
        finally:
            with contextlib.suppress(queue.Empty):
                while True:
                    proven.get_nowait().close()


def _authenticate(
    connection: socket.socket,
    ranks: bytes,
    proofs: Proofs,
    proven: "queue.SimpleQueue[socket.socket]",
    slots: threading.Semaphore,
) -> None:
    """Check that a caller knows the secret; disconnect it otherwise."""
    ours = os.urandom(_NONCE_BYTES)
    try:
        connection.settimeout(_HANDSHAKE_TIMEOUT)
        connection.sendall(_GREETING + ours)
        challenge = (ranks, ours, read_exactly(connection, _NONCE_BYTES))
        if not proofs.is_proven(read_exactly(connection, PROOF_BYTES), b"caller", *challenge):
            raise ConnectionRefusedError("does not know the secret")
        connection.sendall(proofs.prove(b"called", *challenge))
        proven.put(connection)
    except OSError as error:
        _log.info("closed the connection %s: %s", connection, error)
        connection.close()
    finally:
        slots.release()


def call(address: tuple[str, int], ranks: bytes, proofs: Proofs, seconds: float) -> socket.socket:
    """Connect to another task.

    Raises:
        ConnectError: The task cannot be reached, or the two do not know the same secret.
    """
    where = f"{address[0]}:{address[1]}"
    try:
        connection = socket.create_connection(address, timeout=seconds)
    except OSError as error:
        raise ConnectError(f"{where} cannot be reached: {reason_of(error)}") from error
    try:
        connection.settimeout(_HANDSHAKE_TIMEOUT)
        if read_exactly(connection, len(_GREETING)) != _GREETING:
            raise ConnectError(f"{where} is not a task of this version of tfdist")
        theirs, ours = read_exactly(connection, _NONCE_BYTES), os.urandom(_NONCE_BYTES)
        challenge = (ranks, theirs, ours)
        connection.sendall(ours + proofs.prove(b"caller", *challenge))
        if not proofs.is_proven(read_exactly(connection, PROOF_BYTES), b"called", *challenge):
            raise ConnectError(f"{where} does not know the secret")
    except OSError as error:
        connection.close()
        raise ConnectError(f"{where} closes the connection: is its secret the same?") from error
    except ConnectError:
        connection.close()
        raise
    return connection


def read_exactly(connection: socket.socket, count: int) -> bytes:
    """Read this many bytes; raise TimeoutError if they take longer than a handshake may."""
    received, deadline = b"", time.monotonic() + _HANDSHAKE_TIMEOUT
    while len(received) < count:
        data = connection.recv(count - len(received))
        if not data:
            raise ConnectionError("closes the connection")
        if time.monotonic() > deadline:
            raise TimeoutError("sends too slowly")
        received += data
    return received
