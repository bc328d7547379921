"""Answer the doctors of other tasks at this task's own port, for as long as this one runs."""

import contextlib
import socket
import threading
from collections.abc import Callable

from tfdist.cluster.addresses_and_free_ports import listen_on_all_interfaces, port_taken
from tfdist.cluster.config import Task
from tfdist.coordination.only_peers import admitting_only_peers
from tfdist.diagnostics.doctor.protocol import (
    Bulk,
    Clock,
    End,
    Facts,
    Link,
    LinkError,
    Measure,
    Measured,
    Participant,
    Received,
    Request,
    Time,
    ends_of,
    proofs_of,
)
from tfdist.transport.unproven_callers import UnprovenCallers

_MOST_LINKS = 256  # at a time; a further caller is disconnected, and calls again
_SECONDS_BETWEEN_POLLS = 0.1


class Answering:
    """A listener at this task's own port, on all interfaces, as TensorFlow's server listens later.

    Attributes:
        finished: The tasks that have called, and said all that they wanted.
        ended: Set once the lead has told that all is measured.
    """

    def __init__(
        self, participant: Participant, *, measure: Callable[[Task], Measured] | None = None
    ) -> None:
        self._own, self._measure = participant, measure
        self._tasks = {str(other): other for other in participant.cluster.tasks()}
        self.finished: set[Task] = set()
        self.ended = threading.Event()
        self._is_over = False
        self._links = 0

    def __enter__(self) -> "Answering":
        cluster, task = self._own.cluster, self._own.task
        address = cluster.address(task)
        with admitting_only_peers(cluster.with_task(*task)):
            try:
                self._listener = listen_on_all_interfaces(address)
            except OSError as error:
                raise port_taken(str(task), address) from error
        self._listener.setblocking(False)
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._thread.join()
        self._listener.close()

    def _accept(self) -> None:
        ends = ends_of(self._own.cluster, self._own.task)
        unproven = UnprovenCallers([self._listener], ends, proofs_of(self._own.secret))
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
                link.send(self._own.facts)
                if facts.cluster == self._own.facts.cluster:
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
            link.send(Time(self._own.clock()))
        elif isinstance(request, Bulk):
            link.receive_bulk(request.count)
            link.send(Received())
        elif isinstance(request, Measure):
            link.send(self._measured(request, caller))
        else:
            if caller == self._own.cluster.lead:
                self.ended.set()
            link.send(Received())

    def _measured(self, request: Measure, caller: Task | None) -> Measured:
        other = self._tasks.get(request.task)
        if self._measure is None or other is None or caller != self._own.cluster.lead:
            return Measured(problem="does not measure")
        return self._measure(other)
