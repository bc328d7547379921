"""Answer the doctors of other tasks at this task's own port, for as long as this one runs."""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable

from tfdist.cluster.addresses import listen_on_all_interfaces, port_taken
from tfdist.cluster.config import ClusterConfig, Task
from tfdist.coordination.only_peers import admitting_only_peers
from tfdist.diagnostics.doctor.messages import (
    Bulk,
    Clock,
    End,
    Facts,
    Link,
    LinkError,
    Measure,
    Measured,
    Received,
    Request,
    Time,
)
from tfdist.transport.authentication import Proofs
from tfdist.transport.unproven_callers import UnprovenCallers

__all__ = ["Answering", "proofs_of", "ranks_of"]

_MARK = b"tfdist doctor 1"
_MOST_LINKS = 256  # at a time; a further caller is disconnected, and calls again
_SECONDS_BETWEEN_POLLS = 0.1


def proofs_of(secret: bytes | None) -> Proofs:
    """Return the proofs of a secret; without one, everybody can make them."""
    return Proofs(secret or b"", _MARK)


def ranks_of(cluster: ClusterConfig, called: Task) -> bytes:
    """Return what a proof is bound to besides the secret: the task that is called."""
    return struct.pack("!I", cluster.tasks().index(called))


class Answering:
    """A listener at this task's own port, on all interfaces, as TensorFlow's server listens later.

    Attributes:
        finished: The tasks that have called, and said all that they wanted.
        ended: Set once the lead has told that all is measured.
    """

    def __init__(
        self,
        cluster: ClusterConfig,
        task: Task,
        secret: bytes | None,
        facts: Facts,
        *,
        clock: Callable[[], float] = time.time,
        measure: Callable[[Task], Measured] | None = None,
    ) -> None:
        self._cluster, self._task, self._facts, self._clock = cluster, task, facts, clock
        self._secret, self._measure = secret, measure
        self._tasks = {str(other): other for other in cluster.tasks()}
        self.finished: set[Task] = set()
        self.ended = threading.Event()
        self._is_over = False
        self._links = 0

    def __enter__(self) -> "Answering":
        address = self._cluster.address(self._task)
        with admitting_only_peers(self._cluster.with_task(*self._task)):
            try:
                self._listener = listen_on_all_interfaces(address)
            except OSError as error:
                raise port_taken(str(self._task), address) from error
        self._listener.setblocking(False)
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._thread.join()
        self._listener.close()

    def _accept(self) -> None:
        ranks = ranks_of(self._cluster, self._task)
        unproven = UnprovenCallers(self._listener, ranks, proofs_of(self._secret))
        with contextlib.closing(unproven):
            while not self._is_over:
                for connection in unproven.proven(_SECONDS_BETWEEN_POLLS):
                    if self._links >= _MOST_LINKS:
                        connection.close()
                        continue
                    self._links += 1
                    threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        """Answer one caller until it closes the connection."""
        caller: Task | None = None
        try:
            with Link(connection) as link:
                facts = link.receive(Facts)
                link.send(self._facts)
                if facts.cluster == self._facts.cluster:
                    caller = self._tasks.get(facts.task)
                while True:
                    self._answer(link, link.receive(Request), caller)  # type: ignore[arg-type]
        except LinkError:  # it has closed the connection, or sends something else
            if caller is not None:
                self.finished.add(caller)
        finally:
            self._links -= 1

    def _answer(self, link: Link, request: Clock | Bulk | Measure | End, caller: Task | None) -> None:
        if isinstance(request, Clock):
            link.send(Time(self._clock()))
        elif isinstance(request, Bulk):
            link.receive_bulk(request.count)
            link.send(Received())
        elif isinstance(request, Measure):
            link.send(self._measured(request, caller))
        else:
            if caller == self._cluster.lead:
                self.ended.set()
            link.send(Received())

    def _measured(self, request: Measure, caller: Task | None) -> Measured:
        other = self._tasks.get(request.task)
        if self._measure is None or other is None or caller != self._cluster.lead:
            return Measured(problem="does not measure")
        return self._measure(other)
