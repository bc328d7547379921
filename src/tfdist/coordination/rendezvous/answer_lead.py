"""Answer in the rendezvous: listen on this task's address for the lead."""

import contextlib
import logging
import selectors
import socket
import time

import msgspec

from tfdist.cluster.addresses_and_free_ports import listen_on_all_interfaces, port_taken
from tfdist.cluster.config import ClusterConfig, Task
from tfdist.coordination.grpc_health_probe import SILENCE_LIMIT, why_silent
from tfdist.coordination.rendezvous.messages import (
    MALFORMED,
    MOST_BYTES,
    SECONDS_TO_SPEAK,
    Answer,
    Call,
    Marks,
    difference,
)
from tfdist.coordination.wait_for_tasks import Awaiting
from tfdist.errors import printable

_MAX_UNKNOWN_CALLERS = 16  # at a time; a new one replaces the oldest
_LEAD_TIMEOUT = SILENCE_LIMIT  # after which the lead counts as lost
_SECONDS_BETWEEN_POLLS = 0.1
_SECONDS_AFTER_FAILED_ACCEPT = 0.1
_log = logging.getLogger("tfdist")


class Member:
    """A task that listens for the lead; unknown callers do not disturb it."""

    def __init__(self, cluster: ClusterConfig, marks: Marks, awaiting: Awaiting) -> None:
        self._cluster, self._awaiting = cluster, awaiting
        self._task = cluster.task or Task("worker", 0)
        self._lead = cluster.lead
        self._answer = Answer(marks, str(self._task))
        self._selector = selectors.DefaultSelector()
        self._received: dict[socket.socket, bytes] = {}
        self._deadlines: dict[socket.socket, float] = {}  # in the order of arrival
        self._lead_connection: socket.socket | None = None  # None until the lead has called
        self._call = Call({}, "", {}, [])
        self._wrong_caller = ""
        self._is_failure_reported = False

    def answer(self) -> tuple[Task, ...]:
        """Return the tasks that take part, once the lead has named them."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._close)
            listener = stack.enter_context(self._listening())
            self._selector.register(listener, selectors.EVENT_READ)
            while self._answer.task not in self._call.start:
                for key, _ in self._selector.select(_SECONDS_BETWEEN_POLLS):
                    if key.fileobj is listener:
                        self._accept(listener)
                    elif isinstance(key.fileobj, socket.socket) and key.fileobj in self._deadlines:
                        self._read(key.fileobj)
                now = time.monotonic()
                for connection in [late for late, deadline in self._deadlines.items() if deadline < now]:
                    self._disconnect(connection)
                # Once the lead has named who starts, the wait is over in time.
                if self._awaiting.is_due and not self._call.start:
                    self._awaiting.report(self._missing())
        return tuple(task for task in self._cluster.tasks() if str(task) in self._call.start)

    def _listening(self) -> socket.socket:
        address = self._cluster.address(self._task)
        try:
            listener = listen_on_all_interfaces(address)
        except OSError as error:
            raise port_taken(str(self._task), address) from error
        listener.setblocking(False)
        return listener

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except BlockingIOError:  # the caller has left again
            return
        except OSError as error:  # such as too many open files: a caller less makes room
            if not self._is_failure_reported:
                _log.warning("cannot accept a connection, trying again: %s", error.strerror)
            self._is_failure_reported = True
            self._disconnect_oldest(most=0)
            time.sleep(_SECONDS_AFTER_FAILED_ACCEPT)
            return
        self._is_failure_reported = False
        connection.setblocking(False)
        self._disconnect_oldest(most=_MAX_UNKNOWN_CALLERS - 1)
        self._received[connection], self._deadlines[connection] = b"", time.monotonic() + SECONDS_TO_SPEAK
        self._selector.register(connection, selectors.EVENT_READ)

    def _disconnect_oldest(self, most: int) -> None:
        """Disconnect the oldest unknown caller if there are more than `most`."""
        unknown = [caller for caller in self._deadlines if caller is not self._lead_connection]
        if len(unknown) > most:
            self._disconnect(unknown[0])

    def _read(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(MOST_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._received[connection] += data
        message, newline, self._received[connection] = self._received[connection].partition(b"\n")
        if not newline:
            self._received[connection] = message
            if not data or len(message) > MOST_BYTES:
                self._disconnect(connection)
            return
        try:
            call = msgspec.json.decode(message, type=Call)
            # An answer is short: it fits into the socket's buffer.
            connection.send(msgspec.json.encode(self._answer) + b"\n")
        except (*MALFORMED, OSError):
            self._disconnect(connection)
            return
        if (call.marks, call.task) == (self._answer.marks, self._answer.task):
            self._accept_call(connection, call)
        else:
            whose = "this cluster, which takes this one for another"
            if call.marks != self._answer.marks:
                whose = difference(self._answer.marks, call.marks)
            self._wrong_caller = f"; a task of {whose}, calls this task's address"
            self._disconnect(connection)

    def _accept_call(self, connection: socket.socket, call: Call) -> None:
        if self._lead_connection is not None and self._lead_connection is not connection:
            self._disconnect(self._lead_connection)  # a lead that was restarted calls again
        self._lead_connection, self._call = connection, call
        self._deadlines[connection] = time.monotonic() + _LEAD_TIMEOUT

    def _missing(self) -> dict[Task, str]:
        """Return the missing tasks and why: those that the lead names, or the lead itself."""
        known = {str(task): task for task in self._cluster.tasks()}
        # Text from the network, even the lead's, is printed without control characters.
        named_by_lead = {
            known[name]: printable(why) for name, why in self._call.missing.items() if name in known
        }
        if self._lead_connection is not None:
            return named_by_lead or {self._lead: "is about to begin"}
        why = why_silent(self._cluster.address(self._lead))
        why = why or "its TensorFlow server answers, so training runs without this task"
        if named_by_lead:
            why += f"; it was waiting for {' and '.join(map(str, named_by_lead))}"
        return {self._lead: why + self._wrong_caller}

    def _disconnect(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        del self._received[connection], self._deadlines[connection]
        if connection is self._lead_connection:
            self._lead_connection = None
        connection.close()

    def _close(self) -> None:
        for connection in list(self._deadlines):
            self._disconnect(connection)
        self._selector.close()
