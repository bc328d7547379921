"""Connect a task with another one: with both neighbours in the ring, or with a parameter server.

The system chooses the port, at the task's own addresses in the cluster. In a ring the port is open only until
the previous task has connected. Both ends of a connection prove that they know the cluster's secret: each
answers a random challenge of the other. A caller without the secret is disconnected, and delays nobody
else.
"""

import contextlib
import errno
import ipaddress
import os
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tfdist.cluster.addresses_and_free_ports import all_interfaces, split_address
from tfdist.cluster.config import ClusterConfig, Task
from tfdist.coordination.grpc_health_probe import reason_of
from tfdist.transport.authentication import PROOF_BYTES, Connection, Proofs
from tfdist.transport.unproven_callers import (
    GREETING,
    HANDSHAKE_TIMEOUT,
    NONCE_BYTES,
    PROVEN_TIMEOUT,
    UnprovenCallers,
    set_options,
)

_SECONDS_BETWEEN_POLLS = 0.1
_MAX_HANDSHAKES = 3  # of one call: the other task may have closed the connection in favour of other callers
_SECONDS_BETWEEN_HANDSHAKES = 0.2
_MAX_PORTS = 20  # tried, until one is free at all addresses


class ExchangeError(ConnectionError):
    """A task is lost, or the two ends of a connection are not at the same exchange."""


class ConnectError(Exception):
    """A task is not connected to another one; the text is the reason."""


class Listener:
    """A listener for other tasks, open for as long as the block lasts.

    Attributes:
        port: The port that it listens on.
    """

    def __init__(self, host: str, others: Iterable[str] = ()) -> None:
        """Listen at all addresses that a host stands for, and at no other.

        A host may call itself by a loopback address, as Debian does (127.0.1.1), while others reach it at
        another one. It listens on all interfaces then, as TensorFlow's servers do.

        Args:
            host: The host of this task.
            others: The hosts of the other tasks.

        Raises:
            ConnectError: This task cannot listen at any of these addresses.
        """
        self._listeners: list[socket.socket] = []
        try:
            found = dict.fromkeys(entry[4] for entry in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM))
            if _is_alias_of_loopback(host, found) and _is_any_elsewhere(others):
                self._listeners.append(all_interfaces(0))
            else:
                self._listen_at([*found])
        except OSError as error:
            raise ConnectError(f"cannot listen on {host}: {reason_of(error)}") from error
        for listener in self._listeners:
            listener.setblocking(False)
        self.port: int = self._listeners[0].getsockname()[1]
        self._is_open = True

    @classmethod
    def of(cls, cluster: ClusterConfig, task: Task) -> "Listener":
        """Return the listener of a task."""
        hosts = {other: split_address(cluster.address(other))[0] for other in cluster.tasks()}
        return cls(hosts.pop(task), {*hosts.values()})

    def _listen_at(self, addresses: Sequence[tuple[Any, ...]]) -> None:
        """Listen at one port of all these addresses that are this machine's."""
        for _ in range(_MAX_PORTS):
            port, failure, is_taken = 0, OSError("it stands for no address"), False
            for host, _, *scope in addresses:
                family = socket.AF_INET6 if scope else socket.AF_INET
                try:
                    self._listeners.append(socket.create_server((host, port, *scope), family=family))
                except OSError as error:
                    failure, is_taken = error, is_taken or bool(port and error.errno == errno.EADDRINUSE)
                else:
                    port = self._listeners[-1].getsockname()[1]
            if self._listeners and not is_taken:
                return
            self.close()
            self._listeners.clear()
        raise failure

    def __enter__(self) -> "Listener":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Accept no more connections."""
        self._is_open = False
        for listener in self._listeners:
            listener.close()

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
            unproven = UnprovenCallers(self._listeners, ends, proofs)
        except ValueError:  # `close` came first
            return
        with contextlib.closing(unproven):
            while self._is_open and time.monotonic() < deadline:
                yield from unproven.proven(_SECONDS_BETWEEN_POLLS)


def _is_alias_of_loopback(host: str, addresses: Iterable[tuple[Any, ...]]) -> bool:
    """Return whether a host has a name that this machine takes for its loopback interface."""
    hosts = [str(address[0]) for address in addresses]
    return host not in ("localhost", *hosts) and all(map(_is_loopback, hosts))


def _is_any_elsewhere(hosts: Iterable[str]) -> bool:
    """Return whether this machine reaches one of these hosts over another interface than loopback."""
    for host in hosts:
        with contextlib.suppress(OSError):  # its name is unknown now
            found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
            if not all(_is_loopback(str(entry[4][0])) for entry in found):
                return True
    return False


def _is_loopback(host: str) -> bool:
    return ipaddress.ip_address(host.partition("%")[0]).is_loopback


def call(address: tuple[str, int], ends: bytes, proofs: Proofs, seconds: float) -> Connection:
    """Connect to another task, which may stall for so many seconds.

    Raises:
        ConnectError: The task cannot be reached, or the two do not know the same secret.
    """
    where = f"{address[0]}:{address[1]}"
    for _ in range(_MAX_HANDSHAKES):
        try:
            connection = _connect(address, seconds)
        except OSError as error:
            raise ConnectError(f"{where} cannot be reached: {reason_of(error)}") from error
        try:
            set_options(connection)
            return _proven_by_both(connection, where, ends, proofs, max(seconds, HANDSHAKE_TIMEOUT))
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


def _connect(address: tuple[str, int], seconds: float) -> socket.socket:
    """Connect to the first address of a host that answers; the others share the seconds.

    A host may have several, of which one drops packets.
    """
    found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
    deadline, failure = time.monotonic() + seconds, OSError("it stands for no address")
    for index, (family, kind, protocol, _, place) in enumerate(found):
        left = max(deadline - time.monotonic(), _SECONDS_BETWEEN_POLLS) / (len(found) - index)
        with contextlib.ExitStack() as on_failure:
            try:
                connection = on_failure.enter_context(socket.socket(family, kind, protocol))
                connection.settimeout(left)
                connection.connect(place)
            except OSError as error:
                failure = error
                continue
            connection.settimeout(seconds)
            on_failure.pop_all()
            return connection
    raise failure


def _proven_by_both(
    connection: socket.socket, where: str, ends: bytes, proofs: Proofs, seconds: float
) -> Connection:
    """Prove to the called task that this one knows the secret, and check its own proof."""
    deadline = time.monotonic() + seconds
    if read_exactly(connection, len(GREETING), deadline) != GREETING:
        raise ConnectError(f"{where} is not a task of this version of tfdist")
    challenge = (ends, read_exactly(connection, NONCE_BYTES, deadline), os.urandom(NONCE_BYTES))
    connection.sendall(challenge[-1] + proofs.prove(b"caller", *challenge))
    if not proofs.is_proven(read_exactly(connection, PROOF_BYTES, deadline), b"called", *challenge):
        raise ConnectError(f"{where} does not know the secret")
    connection.settimeout(PROVEN_TIMEOUT)
    return proofs.connection(connection, *challenge, is_caller=True)


def read_exactly(connection: Connection, count: int, deadline: float | None = None) -> bytes:
    """Read this many bytes; raise TimeoutError if they come after the deadline, or take too long."""
    received, timeout = b"", connection.gettimeout()
    deadline = time.monotonic() + PROVEN_TIMEOUT if deadline is None else deadline
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
