"""Connect a task with another one: with both neighbours in the ring, or with a parameter server.

The system chooses the port, on the task's own address in the cluster. In a ring the port is open only until
the previous task has connected. Both ends of a connection prove that they know the cluster's secret: each
answers a random challenge of the other. A caller without the secret is disconnected, and delays nobody
else.
"""

import contextlib
import os
import socket
import time
from collections.abc import Iterator

from tfdist.coordination.health_checks import reason_of
from tfdist.transport.authentication import PROOF_BYTES, Connection, Proofs
from tfdist.transport.unproven_callers import GREETING, HANDSHAKE_TIMEOUT, NONCE_BYTES, UnprovenCallers

_SECONDS_BETWEEN_POLLS = 0.1
_MAX_HANDSHAKES = 3  # of one call: the other task may have closed the connection in favour of other callers
_SECONDS_BETWEEN_HANDSHAKES = 0.2


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
            self._listener.setblocking(False)
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

    def caller(self, ends: bytes, proofs: Proofs, seconds: float) -> Connection:
        """Wait for the task that can prove that the connection is between these ends.

        Raises:
            ConnectError: No such task has connected in time.
        """
        for connection in self.callers(ends, proofs, seconds):
            return connection
        raise ConnectError("no task that knows the secret has connected")

    def callers(self, ends: bytes, proofs: Proofs, seconds: float = float("inf")) -> Iterator[Connection]:
        """Yield each connection that comes in time, and is proven to be between these ends."""
        deadline = time.monotonic() + seconds
        try:
            unproven = UnprovenCallers(self._listener, ends, proofs)
        except ValueError:  # `close` came first
            return
        with contextlib.closing(unproven):
            while self._is_open and time.monotonic() < deadline:
                yield from unproven.proven(_SECONDS_BETWEEN_POLLS)


def call(address: tuple[str, int], ends: bytes, proofs: Proofs, seconds: float) -> Connection:
    """Connect to another task.

    Raises:
        ConnectError: The task cannot be reached, or the two do not know the same secret.
    """
    where = f"{address[0]}:{address[1]}"
    for _ in range(_MAX_HANDSHAKES):
        try:
            connection = socket.create_connection(address, timeout=seconds)
        except OSError as error:
            raise ConnectError(f"{where} cannot be reached: {reason_of(error)}") from error
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return _proven_by_both(connection, where, ends, proofs)
        except TimeoutError as error:
            connection.close()
            raise ConnectError(f"{where} does not answer") from error
        except OSError as error:
            connection.close()
            problem = error
        except ConnectError:
            connection.close()
            raise
        time.sleep(_SECONDS_BETWEEN_HANDSHAKES)
    raise ConnectError(f"{where} closes the connection: is its secret the same?") from problem


def _proven_by_both(connection: socket.socket, where: str, ends: bytes, proofs: Proofs) -> Connection:
    """Prove to the called task that this one knows the secret, and check its own proof."""
    deadline = time.monotonic() + HANDSHAKE_TIMEOUT
    if read_exactly(connection, len(GREETING), deadline) != GREETING:
        raise ConnectError(f"{where} is not a task of this version of tfdist")
    challenge = (ends, read_exactly(connection, NONCE_BYTES, deadline), os.urandom(NONCE_BYTES))
    connection.sendall(challenge[-1] + proofs.prove(b"caller", *challenge))
    if not proofs.is_proven(read_exactly(connection, PROOF_BYTES, deadline), b"called", *challenge):
        raise ConnectError(f"{where} does not know the secret")
    connection.settimeout(HANDSHAKE_TIMEOUT)
    return proofs.connection(connection, *challenge, is_caller=True)


def read_exactly(connection: Connection, count: int, deadline: float | None = None) -> bytes:
    """Read this many bytes; raise TimeoutError if they come after the deadline, or take too long."""
    received, timeout = b"", connection.gettimeout()
    deadline = time.monotonic() + HANDSHAKE_TIMEOUT if deadline is None else deadline
    try:
        while len(received) < count:
            if (seconds := deadline - time.monotonic()) <= 0:
                raise TimeoutError("sends too slowly")
            connection.settimeout(seconds)
            data = connection.recv(count - len(received))
            if not data:
                raise ConnectionError("closes the connection")
            received += data
    finally:
        connection.settimeout(timeout)
    return received
