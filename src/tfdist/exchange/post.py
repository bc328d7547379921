"""Carry tensors between workers and parameter servers: by a line from every worker to every server.

Variables come down and gradients go up. A worker that begins a step draws a ticket, which the graph takes to
the servers: who it is, in which life of its process, and how many steps it has begun. So every parcel is of
one step of one worker, and what is left of a step that was given up is never taken for a part of a later one.
"""

import abc
import json
import logging
import os
import struct
import threading
from typing import Any

import numpy as np

from tfdist.addresses import split_address
from tfdist.cluster import ClusterConfig
from tfdist.exchange.freight import Manifest, read_manifest
from tfdist.exchange.lines import Broken, Door, Unmet, call, read_exactly
from tfdist.exchange.parcels import Line, WhyLost
from tfdist.exchange.secret import Proofs
from tfdist.exchange.shared import share_memory
from tfdist.exchange.shelves import Shelves
from tfdist.exchange.silence import Silence
from tfdist.probing import reason_of
from tfdist.rollcall import fingerprint

__all__ = ["Post", "ServerPost", "WorkerPost", "written_addresses"]

_SECONDS_TO_MEET = 15.0
_HELLO = struct.Struct("!IQ")
_log = logging.getLogger("tfdist")

Array = np.ndarray[Any, Any]


def written_addresses(servers: dict[int, tuple[str, int]]) -> bytes:
    """Write down where each server's door is, for the workers."""
    return json.dumps([[server, *address] for server, address in servers.items()]).encode()


class Post(abc.ABC):
    """Be a task's end: send and receive what operations of a graph ask for; the texts are manifests."""

    def __init__(self, cluster: ClusterConfig, secret: bytes) -> None:
        self._cluster, self._secret = cluster, secret

    def receive(self, text: bytes, ticket: Array, *_: Array) -> list[Array]:
        """Receive the arrays of a step."""
        manifest = read_manifest(text)
        line, silence = self._found(manifest, ticket)
        return line.receive(manifest, int(ticket[2]), silence)

    @abc.abstractmethod
    def close(self) -> None:
        """Hang up."""

    @abc.abstractmethod
    def _found(self, manifest: Manifest, ticket: Array) -> tuple[Line, WhyLost]:
        """Give the line for a step, and how to find out whether its other end is there."""

    def _named(self, job: str, index: int) -> str:
        return f"{job}:{index} at {self._cluster.address((job, index))}"

    def _silence(self, job: str, index: int, timeout: float | None) -> WhyLost:
        return Silence({self._named(job, index): self._cluster.address((job, index))}, timeout).why_lost

    def _proofs(self, port: int) -> Proofs:
        # The port is new at each start: so nobody is taken for a task of an earlier one.
        return Proofs(self._secret, f"{fingerprint(self._cluster)} {port}".encode())


class WorkerPost(Post):
    """Be a worker's end: call the servers, and draw tickets."""

    def __init__(self, cluster: ClusterConfig, secret: bytes) -> None:
        super().__init__(cluster, secret)
        self._index = cluster.task.index if cluster.task else 0
        self._life = int.from_bytes(os.urandom(7), "big")
        self._steps = 0
        self._lines: dict[int, Line] = {}
        self._lock = threading.Lock()

    def meet(self, addresses: bytes) -> bytes:
        """Call all servers; say who cannot be reached and why, or nothing."""
        try:
            with self._lock:
                self._call_all(addresses)
        except Unmet as error:
            return str(error).encode()
        return b""

    def begin(self, addresses: bytes) -> Array:
        """Draw the ticket of a step, when there is a line to every server."""
        with self._lock:
            try:
                self._call_all(addresses)
            except Unmet as error:
                raise Broken(str(error)) from error
            self._steps += 1
            return np.array([self._index, self._life, self._steps])

    def close(self) -> None:
        """Hang up."""
        for line in list(self._lines.values()):
            line.cut("this task ends")

    def hand_over(self, text: bytes, ticket: Array, *arrays: Array) -> Array:
        """Have arrays sent to a server; give the ticket, with which the server waits for them."""
        manifest = read_manifest(text)
        line, silence = self._found(manifest, ticket)
        line.hand_over(manifest, int(ticket[2]), arrays, silence)
        return ticket

    def receive(self, text: bytes, ticket: Array, *others: Array) -> list[Array]:
        """Receive arrays from a server."""
        try:
            return super().receive(text, ticket, *others)
        except Broken as error:
            self._give_up(str(error))
            raise

    def _give_up(self, why: str) -> None:
        # TensorFlow ends a step of which a part has failed when each operation of it has returned: one that
        # waits for another server, where the step has ended already, would not.
        for line in list(self._lines.values()):
            line.cut(why)

    def _call_all(self, addresses: bytes) -> None:
        for server, host, port in json.loads(addresses):
            if server not in self._lines or self._lines[server].why_cut:
                self._lines[server] = self._called(server, host, port)

    def _called(self, server: int, host: str, port: int) -> Line:
        name = self._named("ps", server)
        try:
            line = call((host, port), _about(server), self._proofs(port), _SECONDS_TO_MEET)
            line.sendall(_HELLO.pack(self._index, self._life))
            memories = share_memory(line)
        except Unmet as error:
            raise Unmet(f"{name}: {error}") from error
        except OSError as error:
            line.close()
            raise Unmet(f"{name} hangs up: {reason_of(error)}") from error
        return Line(name, line, Shelves(*memories) if memories else None)

    def _found(self, manifest: Manifest, ticket: Array) -> tuple[Line, WhyLost]:
        del ticket
        return self._lines[manifest.server], self._silence("ps", manifest.server, manifest.timeout)


class ServerPost(Post):
    """Be a parameter server's end: let the workers in, for as long as it serves."""

    def __init__(self, cluster: ClusterConfig, secret: bytes) -> None:
        super().__init__(cluster, secret)
        self._index = cluster.task.index if cluster.task else 0
        self._lines: dict[int, Line] = {}  # by the life of the worker
        self._workers: dict[int, int] = {}  # the lives of the workers
        self._moved = 0  # by lines that are no more
        self._coming = threading.Condition()
        self._door = Door(split_address(cluster.address(("ps", self._index)))[0])
        threading.Thread(target=self._let_in, daemon=True).start()

    def send(self, text: bytes, ticket: Array, *arrays: Array) -> Array:
        """Send arrays to a worker."""
        manifest = read_manifest(text)
        line, silence = self._found(manifest, ticket)
        line.send(manifest, int(ticket[2]), arrays, silence)
        return np.array(0)

    def port(self) -> Array:
        """Give where to be called."""
        return np.array(self._door.port)

    def moved(self) -> Array:
        """Give how many bytes have gone out and come in, as the sockets have counted them."""
        with self._coming:
            return np.array(self._moved + sum(line.moved for line in self._lines.values()))

    def close(self) -> None:
        """Let nobody in any more, and hang up."""
        self._door.close()
        for line in list(self._lines.values()):
            line.cut("this task ends")

    def _let_in(self) -> None:
        for line in self._door.callers(_about(self._index), self._proofs(self._door.port)):
            try:
                worker, life = _HELLO.unpack(read_exactly(line, _HELLO.size))
                memories = share_memory(line)
            except OSError as error:
                _log.info("hung up on %s: %s", line, error)
                line.close()
                continue
            with self._coming:
                for old in {self._workers.get(worker, life), life}:
                    if old in self._lines:
                        self._moved += self._lines[old].moved
                        self._lines.pop(old).cut(f"worker:{worker} has called again")
                self._workers[worker] = life
                shelves = Shelves(*memories) if memories else None
                self._lines[life] = Line(self._named("worker", worker), line, shelves)
                self._coming.notify_all()

    def _found(self, manifest: Manifest, ticket: Array) -> tuple[Line, WhyLost]:
        worker, life, _ = (int(each) for each in ticket)
        with self._coming:
            # The worker has its end of the line already, or it would have drawn no ticket.
            if not self._coming.wait_for(lambda: life in self._lines, _SECONDS_TO_MEET):
                raise Broken(f"{self._named('worker', worker)} has no line to this server any more")
            line = self._lines[life]
        if manifest.is_in_step:
            return line, self._silence("worker", worker, manifest.timeout)
        return line, _nothing  # workers that go at their own pace may be silent: others go on


def _nothing(seconds: float) -> str:
    del seconds
    return ""


def _about(server: int) -> bytes:
    """Say whose line it is, in a fixed number of bytes."""
    return struct.pack("!I", server)
