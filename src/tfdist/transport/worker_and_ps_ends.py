"""Send tensors between workers and parameter servers, over one channel from every worker to every server.

Variables go to the workers and gradients go to the servers. A worker that begins a step creates a ticket,
which the graph carries to the servers. The ticket names the worker, the lifetime of its process, and the
number of its step. So every message belongs to one step of one worker, and the rest of a step that was
given up is never taken for a part of a later one.
"""

import abc
import contextlib
import json
import logging
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from tfdist.cluster.config import ClusterConfig, Task
from tfdist.coordination.background_threads import end_process
from tfdist.coordination.calls_between_tasks import register
from tfdist.coordination.grpc_health_probe import SILENCE_LIMIT, ServerSilence, answers, reason_of
from tfdist.coordination.rendezvous import fingerprint
from tfdist.errors import ConfigError, TaskLost
from tfdist.transport.authentication import Connection, Proofs, find_secret
from tfdist.transport.channel import Channel, GivenUp, WhyLost, broken
from tfdist.transport.listen_and_call import ConnectError, ExchangeError, Listener, call, read_exactly
from tfdist.transport.shared_memory import SharedBuffers, share_memory
from tfdist.transport.tls import check_tls
from tfdist.transport.worker_and_ps_messages import Manifest, read_manifest

_SECONDS_TO_CONNECT = 15.0
# After the heartbeat timeout; by then the chief has given the steps of a silent worker to others.
_SECONDS_FOR_CHIEF = 15.0
_SECONDS_TO_BE_GONE = 2.0  # for a process that ends: its listener closes at about the time of its connections
_SECONDS_TO_BE_NOTICED = 2.0  # for a process that is gone, by the chief
_SECONDS_BETWEEN_LOOKS = 0.2
_SECONDS_BETWEEN_LISTS = 1.0  # of the connections to watch
_MOST_THREADS = 32
_HELLO = struct.Struct("!IQ")
_log = logging.getLogger("tfdist")

Array = np.ndarray[Any, Any]
_OF_WORKERS = ("connect", "begin", "receive", "hand_over")
_OF_SERVERS = ("listen", "moved", "send", "receive")


def written_addresses(
    servers: dict[int, tuple[str, int]], *, is_encrypted: bool = False, is_in_step: bool = True
) -> bytes:
    """Return the addresses of the servers' listeners as bytes for the workers, and how these take part."""
    kinds = is_encrypted, is_in_step
    return json.dumps([[server, *address, *kinds] for server, address in servers.items()]).encode()


class Endpoint(abc.ABC):
    """A task's end: sends and receives what operations of a graph ask for; `text` is a manifest."""

    def __init__(self, cluster: ClusterConfig, secret: bytes) -> None:
        self._cluster, self._secret = cluster, secret
        self._fingerprint = fingerprint(cluster)

    def receive(self, text: bytes, ticket: Array, *_: Array) -> list[Array]:
        """Receive the arrays of a step."""
        manifest = read_manifest(text)
        channel, why_lost = self._channel_for(manifest, ticket)
        return channel.receive(manifest, int(ticket[2]), why_lost)

    @abc.abstractmethod
    def close(self) -> None:
        """Close all channels."""

    @abc.abstractmethod
    def _channel_for(self, manifest: Manifest, ticket: Array) -> tuple[Channel, WhyLost]:
        """Return the channel for a step, and the function that says whether its other end is lost."""

    def _describe(self, job: str, index: int) -> str:
        return f"{job}:{index} at {self._cluster.address((job, index))}"

    def _silence_check(
        self, job: str, index: int, timeout: float | None, limit: float = SILENCE_LIMIT
    ) -> WhyLost:
        addresses = {self._describe(job, index): self._cluster.address((job, index))}
        return ServerSilence(addresses, timeout, limit).why_lost

    def _proofs(self, port: int, *, is_encrypted: bool) -> Proofs:
        # The port differs at each start: so no task takes another for one of an earlier start.
        return Proofs(self._secret, f"{self._fingerprint} {port}".encode(), is_encrypted=is_encrypted)


class WorkerEndpoint(Endpoint):
    """A worker's end: connects to the servers, and creates tickets.

    An error of an asynchronous worker would end the training, which continues without such a worker. So if a
    connection of one breaks, and the server is there, its process ends.
    """

    def __init__(
        self,
        cluster: ClusterConfig,
        secret: bytes,
        heartbeat_timeout: float = 60.0,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """Connect to no server yet.

        Args:
            cluster: The cluster.
            secret: The secret of its tasks.
            heartbeat_timeout: Seconds of silence after which the chief counts a server as lost.
            is_over: Returns whether the chief has ended, so that the servers end too.
        """
        super().__init__(cluster, secret)
        self._heartbeat_timeout, self._is_over = heartbeat_timeout, is_over
        self._index = cluster.task.index if cluster.task else 0
        self._lifetime = int.from_bytes(os.urandom(7), "big")
        self._steps = 0
        self._channels: dict[int, Channel] = {}
        self._ports: dict[int, int] = {}  # of the servers when they were connected
        self._lock = threading.Lock()
        self._is_closed = threading.Event()
        self._watch: threading.Thread | None = None

    def connect(self, addresses: bytes) -> bytes:
        """Connect to all servers; return which one cannot be reached and why, or an empty text."""
        try:
            with self._lock:
                self._connect_all(addresses)
        except _NoConnection as error:
            return str(error).encode()
        return b""

    def begin(self, addresses: bytes) -> Array:
        """Return the ticket of a new step, once there is a channel to every server."""
        try:
            with self._lock:
                self._connect_all(addresses)
                self._steps += 1
                for channel in self._channels.values():
                    channel.begin(self._steps)
                return np.array([self._index, self._lifetime, self._steps])
        except _NoConnection as error:
            if not error.is_in_step:
                self._end_without(error.server, str(error))
            raise ExchangeError(str(error)) from error

    def close(self) -> None:
        """Close all channels."""
        self._is_closed.set()
        self._cut_all("this task ends")

    def hand_over(self, text: bytes, ticket: Array, *arrays: Array) -> Array:
        """Queue arrays for a server; return the ticket, with which the server waits for them."""
        manifest = read_manifest(text)

        def on_error(error: ExchangeError) -> None:
            with contextlib.suppress(ExchangeError), self._all_cut_on_error(manifest):
                raise error

        with self._all_cut_on_error(manifest):
            channel, why_lost = self._channel_for(manifest, ticket)
            channel.hand_over(manifest, int(ticket[2]), arrays, why_lost, on_error)
        return ticket

    def receive(self, text: bytes, ticket: Array, *others: Array) -> list[Array]:
        """Receive arrays from a server."""
        with self._all_cut_on_error(read_manifest(text)):
            return super().receive(text, ticket, *others)

    @contextlib.contextmanager
    def _all_cut_on_error(self, manifest: Manifest) -> Iterator[None]:
        """Cut all channels after an error in the block; end this process if it is asynchronous."""
        try:
            yield
        except GivenUp:
            raise  # the later step needs the channels
        except ExchangeError as error:
            self._cut_all(str(error))
            if not manifest.is_in_step:
                self._end_without(manifest.server, str(error))
            raise

    def _end_without(self, server: int, why: str) -> None:
        """End this process; return if the server is gone, whose loss the chief notices, or all is over."""
        address, end = self._cluster.address(("ps", server)), time.monotonic() + _SECONDS_TO_BE_GONE
        while answers(address) is not False and not (self._is_closed.is_set() or self._is_over()):
            if time.monotonic() >= end:
                problem = f"has no connection to a ps any more ({why})"
                remedy = "Start it again; the others continue meanwhile"
                end_process(TaskLost(self._describe("worker", self._index), problem, remedy=remedy))
            time.sleep(_SECONDS_BETWEEN_LOOKS)

    def _watch_connections(self) -> None:
        """Notice a connection that breaks while this worker computes, before it sends its gradients."""
        while not self._is_closed.is_set():
            by_channel = {channel: server for server, channel in self._channels.copy().items()}
            for channel in broken(by_channel, _SECONDS_BETWEEN_LISTS):
                why = f"{channel.name} is gone: the connection is broken"
                self._cut_all(why)
                self._end_without(by_channel[channel], why)

    def _cut_all(self, why: str) -> None:
        # After a failure, TensorFlow ends a step only when each of its operations has returned. One that
        # waits for a server where the step has already ended would never return.
        for channel in list(self._channels.values()):
            channel.cut(why)

    def _connect_all(self, addresses: bytes) -> None:
        """Connect to the servers without a channel, to many at once; raise the first error.

        A server that was started again has another port. Without a message to it, nothing else tells.
        """
        written = json.loads(addresses)
        missing, is_in_step = [], all(is_in_step for *_, is_in_step in written)
        for server, host, port, is_encrypted, _ in written:
            channel = self._channels.get(server)
            if channel is not None and self._ports[server] != port:
                channel.cut(f"{channel.name} was started again")
            if channel is None or channel.why_cut:
                missing.append((server, host, port, is_encrypted))
        if not missing:
            return
        has_failed = threading.Event()

        def open_channel(server: int, host: str, port: int, is_encrypted: bool) -> Channel | None:
            # A firewall that drops packets would keep this worker for some seconds at each server.
            if has_failed.is_set():
                return None
            try:
                proofs = self._proofs(port, is_encrypted=is_encrypted)
                return self._open_channel(server, (host, port), proofs)
            except ConnectError:
                has_failed.set()
                raise

        with ThreadPoolExecutor(min(len(missing), _MOST_THREADS)) as pool:
            channels = {server: pool.submit(open_channel, server, *rest) for server, *rest in missing}
        errors = {server: channel.exception() for server, channel in channels.items()}
        for server, _, port, _ in missing:
            if errors[server] is None and (opened := channels[server].result()) is not None:
                self._channels[server], self._ports[server] = opened, port
        if not is_in_step and self._watch is None:
            self._watch = threading.Thread(target=self._watch_connections, daemon=True)
            self._watch.start()
        for server, error in errors.items():
            if isinstance(error, ConnectError):
                raise _NoConnection(str(error), server, is_in_step=is_in_step) from error
            if error is not None:
                raise error

    def _open_channel(self, server: int, address: tuple[str, int], proofs: Proofs) -> Channel:
        name = self._describe("ps", server)
        try:
            if proofs.is_encrypted:
                check_tls()
            connection = call(address, _pack_server(server), proofs, _SECONDS_TO_CONNECT)
            connection.sendall(_HELLO.pack(self._index, self._lifetime))
            memories = share_memory(connection)
        except (ConnectError, ConfigError) as error:
            raise ConnectError(f"{name}: {error}") from error
        except OSError as error:
            connection.close()
            raise ConnectError(f"{name} closes the connection: {reason_of(error)}") from error
        return Channel(name, connection, SharedBuffers(*memories) if memories else None)

    def _channel_for(self, manifest: Manifest, ticket: Array) -> tuple[Channel, WhyLost]:
        del ticket
        channel = self._channels[manifest.server]
        if manifest.is_in_step:
            return channel, self._silence_check("ps", manifest.server, manifest.timeout)
        # By then the chief has ended all tasks, unless it reaches the server.
        limit = self._heartbeat_timeout + _SECONDS_FOR_CHIEF
        return channel, self._silence_check("ps", manifest.server, manifest.timeout, limit)


class _NoConnection(ConnectError):
    """A worker has no connection to a server."""

    def __init__(self, text: str, server: int, *, is_in_step: bool) -> None:
        super().__init__(text)
        self.server, self.is_in_step = server, is_in_step


class ServerEndpoint(Endpoint):
    """A parameter server's end: accepts connections of the workers for as long as it serves."""

    def __init__(self, cluster: ClusterConfig, secret: bytes, heartbeat_timeout: float = 60.0) -> None:
        """Listen for workers; the chief counts a worker as lost that is silent for `heartbeat_timeout`."""
        super().__init__(cluster, secret)
        self._heartbeat_timeout = heartbeat_timeout
        self._index = cluster.task.index if cluster.task else 0
        self._channels: dict[int, Channel] = {}  # by the lifetime of the worker's process
        self._workers: dict[int, int] = {}  # the current lifetime of each worker
        self._moved = 0  # by channels that are closed
        self._is_closed = False
        self._proofs_of_workers: Proofs | None = None  # once the chief has told whether to encrypt
        self._changed = threading.Condition()
        self._listener = Listener.of(cluster, Task("ps", self._index))

    def send(self, text: bytes, ticket: Array, *arrays: Array) -> Array:
        """Send arrays to a worker."""
        manifest = read_manifest(text)
        with self._errors_after_loss(manifest, ticket):
            channel, why_lost = self._channel_for(manifest, ticket)
            channel.send(manifest, int(ticket[2]), arrays, why_lost)
        return np.array(0)

    def receive(self, text: bytes, ticket: Array, *others: Array) -> list[Array]:
        """Receive arrays from a worker."""
        with self._errors_after_loss(read_manifest(text), ticket):
            return super().receive(text, ticket, *others)

    @contextlib.contextmanager
    def _errors_after_loss(self, manifest: Manifest, ticket: Array) -> Iterator[None]:
        """Raise the error of an exchange with an asynchronous worker once the chief counts that one as lost.

        The others continue without such a worker. Before, the error would end the training.
        """
        worker, lifetime, _ = (int(number) for number in ticket)
        end = time.monotonic() + self._heartbeat_timeout + _SECONDS_FOR_CHIEF
        address = self._cluster.address(("worker", worker))
        try:
            yield
        except GivenUp:
            raise
        except ExchangeError:
            if manifest.is_in_step:
                raise
            while time.monotonic() < end and answers(address) is not False:
                with self._changed:
                    if self._is_closed or self._workers.get(worker, lifetime) != lifetime:
                        break
                    self._changed.wait(_SECONDS_BETWEEN_LOOKS)
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed, _SECONDS_TO_BE_NOTICED)
            raise

    def listen(self, encryption: bytes) -> bytes:
        """Accept workers, with this encryption or with none; return the port, or why this server cannot."""
        proofs = self._proofs(self._listener.port, is_encrypted=bool(encryption))
        if encryption:
            try:
                check_tls()
            except ConfigError as error:
                return str(error).encode()
        with self._changed:
            earlier, self._proofs_of_workers = self._proofs_of_workers, self._proofs_of_workers or proofs
        if earlier is None:
            threading.Thread(target=self._accept_workers, args=(proofs,), daemon=True).start()
        elif earlier.is_encrypted != proofs.is_encrypted:
            return b"serves since before the chief's communication.encryption was changed: start it again"
        return str(self._listener.port).encode()

    def moved(self) -> Array:
        """Return how many bytes have gone out and come in, as the sockets have counted them."""
        with self._changed:
            return np.array(self._moved + sum(channel.moved for channel in self._channels.values()))

    def close(self) -> None:
        """Accept no more connections, and close all channels."""
        self._listener.close()
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            channels = list(self._channels.values())
        for channel in channels:
            channel.cut("this task ends")

    def _accept_workers(self, proofs: Proofs) -> None:
        for connection in self._listener.callers(_pack_server(self._index), proofs):
            # A thread each: a worker that is stopped in between delays no other one.
            accepting = threading.Thread(target=self._accept_worker, args=(connection,), daemon=True)
            try:
                accepting.start()
            except RuntimeError as error:  # too many threads: the worker connects again in its next step
                _log.warning("closed the connection of a worker: %s", error)
                connection.close()

    def _accept_worker(self, connection: Connection) -> None:
        """Open the channel of a worker that has proven that it knows the secret."""
        try:
            worker, lifetime = _HELLO.unpack(read_exactly(connection, _HELLO.size))
            name = self._describe("worker", worker)
            memories = share_memory(connection)
        except (OSError, ConfigError) as error:  # ConfigError: the cluster has no such worker
            _log.warning("closed the connection of a worker: %s", error)
            connection.close()
            return
        with self._changed:
            if self._is_closed:
                connection.close()
                return
            for old in {self._workers.get(worker, lifetime), lifetime}:
                if old in self._channels:
                    self._moved += self._channels[old].moved
                    self._channels.pop(old).cut(f"worker:{worker} has connected again")
            self._workers[worker] = lifetime
            shared_buffers = SharedBuffers(*memories) if memories else None
            self._channels[lifetime] = Channel(name, connection, shared_buffers)
            self._changed.notify_all()

    def _channel_for(self, manifest: Manifest, ticket: Array) -> tuple[Channel, WhyLost]:
        worker, lifetime, _ = (int(number) for number in ticket)
        with self._changed:
            # The worker has its end of the channel already, or it would not have created a ticket.
            if not self._changed.wait_for(lambda: lifetime in self._channels, _SECONDS_TO_CONNECT):
                raise ExchangeError(
                    f"{self._describe('worker', worker)} is no longer connected to this server"
                )
            channel = self._channels[lifetime]
        if manifest.is_in_step:
            return channel, self._silence_check("worker", worker, manifest.timeout)
        # The others continue without an asynchronous worker, and need the thread that waits for it. An error
        # before the chief counts it as lost would end the training.
        limit = self._heartbeat_timeout + _SECONDS_FOR_CHIEF
        return channel, self._silence_check("worker", worker, None, limit)


def _pack_server(server: int) -> bytes:
    """Return whose connection it is, in a fixed number of bytes."""
    return struct.pack("!I", server)


def named(name: str) -> str:
    """Return the name by which other tasks call a function of the endpoint."""
    return f"endpoint.{name}"


def open_endpoint(
    cluster: ClusterConfig, heartbeat_timeout: float, is_over: Callable[[], bool] = lambda: False
) -> Endpoint | None:
    """Open this task's endpoint, if the task has a secret and takes part in training.

    Args:
        cluster: The cluster and this process's task.
        heartbeat_timeout: Seconds of silence after which the chief counts a task as lost.
        is_over: Returns whether the chief has ended, so that all tasks end.

    Raises:
        ConnectError: This task cannot listen on its address.
    """
    secret, task = find_secret(), cluster.task
    if secret is None or task is None or task.type not in ("ps", "worker"):
        return None
    endpoint: Endpoint
    if task.type == "ps":
        endpoint = ServerEndpoint(cluster.training(), secret, heartbeat_timeout)
    else:
        endpoint = WorkerEndpoint(cluster.training(), secret, heartbeat_timeout, is_over)
    for name in _OF_SERVERS if task.type == "ps" else _OF_WORKERS:
        register(named(name), getattr(endpoint, name))
    return endpoint
