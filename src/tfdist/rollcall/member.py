"""Answer the roll-call: listen on this task's address for the lead."""

import contextlib
import selectors
import socket
import time

import msgspec

from tfdist.addresses import port_taken, split_address
from tfdist.awaiting import Awaiting
from tfdist.cluster import ClusterConfig, Task
from tfdist.probing import why_silent
from tfdist.rollcall.speech import MOST_BYTES, SECONDS_TO_SPEAK, Answer, Call

__all__ = ["Member"]

_MOST_STRANGERS = 16  # at a time; the oldest gives way
_SECONDS_OF_SILENCE = 10.0  # after which the lead is taken for lost
_SECONDS_BETWEEN_LOOKS = 0.1


class Member:
    """Listen on this task's address for the lead, and keep strangers from being in the way."""

    def __init__(self, cluster: ClusterConfig, mark: str, awaiting: Awaiting) -> None:
        self._cluster, self._awaiting = cluster, awaiting
        self._task = cluster.task or Task("worker", 0)
        self._lead = cluster.lead
        self._answer = Answer(mark, str(self._task))
        self._selector = selectors.DefaultSelector()
        self._heard: dict[socket.socket, bytes] = {}
        self._until: dict[socket.socket, float] = {}  # in the order in which they came
        self._line: socket.socket | None = None  # the lead's
        self._call = Call("", "", {}, [])
        self._mistaken = ""

    def answer(self) -> tuple[Task, ...]:
        """Give who takes part, when the lead has said so."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._close)
            listener = stack.enter_context(self._listening())
            self._selector.register(listener, selectors.EVENT_READ)
            while self._answer.task not in self._call.start:
                for key, _ in self._selector.select(_SECONDS_BETWEEN_LOOKS):
                    if key.fileobj is listener:
                        self._accept(listener)
                    elif isinstance(key.fileobj, socket.socket) and key.fileobj in self._until:
                        self._hear(key.fileobj)
                for line in [each for each, until in self._until.items() if until < time.monotonic()]:
                    self._drop(line)
                if self._awaiting.is_due and not self._call.start:  # the last word is in time, if it comes
                    self._awaiting.tell(self._missing())
        return tuple(task for task in self._cluster.tasks() if str(task) in self._call.start)

    def _listening(self) -> socket.socket:
        address = self._cluster.address(self._task)
        has_both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if has_both else socket.AF_INET
        try:  # on all interfaces, as TensorFlow's server will
            listener = socket.create_server(
                ("", split_address(address)[1]), family=family, dualstack_ipv6=has_both
            )
        except OSError as error:
            raise port_taken(str(self._task), address) from error
        listener.setblocking(False)
        return listener

    def _accept(self, listener: socket.socket) -> None:
        try:
            line, _ = listener.accept()
        except OSError:  # it has gone again, or too many files are open
            return
        line.setblocking(False)
        strangers = [each for each in self._until if each is not self._line]
        if len(strangers) >= _MOST_STRANGERS:
            self._drop(strangers[0])
        self._heard[line], self._until[line] = b"", time.monotonic() + SECONDS_TO_SPEAK
        self._selector.register(line, selectors.EVENT_READ)

    def _hear(self, line: socket.socket) -> None:
        try:
            heard = line.recv(MOST_BYTES)
        except BlockingIOError:
            return
        except OSError:
            heard = b""
        self._heard[line] += heard
        words, end, self._heard[line] = self._heard[line].partition(b"\n")
        if not end:
            self._heard[line] = words
            if not heard or len(words) > MOST_BYTES:
                self._drop(line)
            return
        try:
            call = msgspec.json.decode(words, type=Call)
            line.send(msgspec.json.encode(self._answer) + b"\n")  # short: the socket has room for it
        except (msgspec.MsgspecError, OSError):
            self._drop(line)
            return
        if (call.cluster, call.task) == (self._answer.cluster, self._answer.task):
            self._listen_to(line, call)
        else:
            self._mistaken = "; another cluster, or configuration, calls this task's address"
            self._drop(line)

    def _listen_to(self, line: socket.socket, call: Call) -> None:
        if self._line is not None and self._line is not line:
            self._drop(self._line)  # of a lead that has been started again
        self._line, self._call = line, call
        self._until[line] = time.monotonic() + _SECONDS_OF_SILENCE

    def _missing(self) -> dict[Task, str]:
        """Say who is awaited: those that the lead misses, or the lead itself."""
        known = {str(task): task for task in self._cluster.tasks()}
        # Even the lead's words are printed only as far as they can be.
        said = {known[name]: _printable(why) for name, why in self._call.missing.items() if name in known}
        if self._line is not None:
            return said or {self._lead: "is about to begin"}
        why = why_silent(self._cluster.address(self._lead))
        why = why or "its TensorFlow server answers, so training is on without this task"
        if said:
            why += f"; it was waiting for {' and '.join(map(str, said))}"
        return {self._lead: why + self._mistaken}

    def _drop(self, line: socket.socket) -> None:
        self._selector.unregister(line)
        del self._heard[line], self._until[line]
        if line is self._line:
            self._line = None
        line.close()

    def _close(self) -> None:
        for line in list(self._until):
            self._drop(line)
        self._selector.close()


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in text)
