"""Send mutated sessions to each listener of tfdist's own, while genuine tasks use it.

A session is what a genuine task sends, as recorded. Mutated, it is cut off, repeated, reordered, altered, too
long, or left open. Nothing may come of it: no task is let in, no error but the one that closes the
connection, no memory, descriptor or thread that stays; and the genuine tasks find what they look for.
"""

import contextlib
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from tfdist.cluster.addresses_and_free_ports import split_address
from tfdist.cluster.config import ClusterConfig, Task
from tfdist.coordination.rendezvous import fingerprint, hold_rendezvous, marks_of
from tfdist.coordination.rendezvous.messages import Call
from tfdist.diagnostics.doctor.answer_other_doctors import Answering
from tfdist.diagnostics.doctor.protocol import (
    Bulk,
    Clock,
    End,
    Facts,
    Link,
    Measure,
    Participant,
    Time,
    ends_of,
    proofs_of,
)
from tfdist.transport.channel import Channel
from tfdist.transport.listen_and_call import ExchangeError, call
from tfdist.transport.tls import TlsConnection
from tfdist.transport.unproven_callers import GREETING, NONCE_BYTES
from tfdist.transport.worker_and_ps_ends import ServerEndpoint, WorkerEndpoint, written_addresses
from tfdist.transport.worker_and_ps_messages import Manifest

SECRET = b"the secret of a cluster"
_GREETED = len(GREETING) + NONCE_BYTES
_MOST_OPEN = 100
_SECONDS = 20.0
_WARM_UP = 50  # sessions, after which memory is counted from


@dataclass
class Findings:
    """What came of an attack.

    Attributes:
        sessions: How many mutated sessions were sent.
        let_in: How many were let in without the secret.
        errors: Errors that no listener may raise.
        genuine: How often a genuine task used the listener meanwhile.
        kilobytes: By how much the process has grown.
        left: Descriptors and threads that have stayed.
    """

    sessions: int = 0
    let_in: int = 0
    errors: list[str] = field(default_factory=list)
    genuine: int = 0
    kilobytes: int = 0
    left: int = 0


def manifest_of(arrays: Sequence[np.ndarray], **changes: object) -> Manifest:
    """Return the manifest of arrays that a server sends as they are, but for some changes."""
    types, shapes = tuple(str(each.dtype) for each in arrays), tuple(each.shape for each in arrays)
    return Manifest("down", 0, types, shapes, "float32", True, False, False, None)._replace(**changes)


def mutated(chance: random.Random, recorded: bytes) -> bytes:
    """Return a session that differs from a recorded one, if only in being repeated."""
    data = bytearray(recorded)
    for _ in range(chance.randint(1, 3)):
        at, to = sorted(chance.randint(0, len(data)) for _ in range(2))
        match chance.randrange(8):
            case 0:
                del data[at:]
            case 1:
                del data[at:to]
            case 2:
                data[at:at] = data[at:to] * chance.randint(1, 3)
            case 3:
                data = data[to:] + data[:to]
            case 4:
                data[at:at] = chance.randbytes(chance.choice((1, 4, 100, 1 << 16)))
            case 5 if data:
                data[min(at, len(data) - 1)] ^= 1 << chance.randrange(8)
            case 6 if data:
                place = min(at, max(0, len(data) - 4))  # such as a length
                data[place : place + 4] = chance.choice((b"\0" * 4, b"\xff" * 4, b"\x7f\xff\xff\xff"))
            case _:
                pass  # as recorded: a replay
    return bytes(data)


class _Caller:
    """A stranger that sends sessions to an address, and leaves some connections open."""

    def __init__(self, address: tuple[str, int], chance: random.Random) -> None:
        self._address, self._chance = address, chance
        self._open: list[socket.socket] = []

    def __enter__(self) -> "_Caller":
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._open:
            connection.close()

    def send(self, session: bytes) -> bytes:
        """Send a session, in one piece or in several; return what comes back until the connection is closed."""
        with contextlib.suppress(OSError):  # the listener may close it at any time
            connection = socket.create_connection(self._address, timeout=_SECONDS)
            if self._chance.random() < 0.02:
                self._leave_open(connection, session)
                return b""
            with connection:
                at = self._chance.randint(0, len(session)) if self._chance.random() < 0.2 else 0
                for piece in (session[:at], session[at:]):
                    connection.sendall(piece)
                connection.shutdown(socket.SHUT_WR)
                return _rest(connection)
        return b""

    def _leave_open(self, connection: socket.socket, session: bytes) -> None:
        self._open.append(connection)
        connection.sendall(session[: self._chance.randint(0, 60)])
        if len(self._open) > _MOST_OPEN:
            self._open.pop(0).close()


def _rest(connection: socket.socket) -> bytes:
    received = b""
    with contextlib.suppress(ConnectionError):
        while data := connection.recv(1 << 16):
            received += data
    return received


@contextlib.contextmanager
def _watched(findings: Findings) -> Iterator[Callable[[], None]]:
    """Collect what threads raise, and what stays in the process from the first call of the result on."""
    before: list[tuple[int, int]] = []

    def raised(hook: threading.ExceptHookArgs) -> None:
        findings.errors.append(f"{hook.exc_type.__name__}: {hook.exc_value}")

    def begin() -> None:
        if not before:
            before.append((_kilobytes(), _descriptors_and_threads()))

    previous, threading.excepthook = threading.excepthook, raised
    try:
        yield begin
        with contextlib.suppress(TimeoutError):
            _wait_until(lambda: not before or _descriptors_and_threads() <= before[0][1])
    finally:
        threading.excepthook = previous
    for kilobytes, left in before:
        findings.kilobytes = _kilobytes() - kilobytes
        findings.left = max(0, _descriptors_and_threads() - left)


def _kilobytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def _descriptors_and_threads() -> int:
    return len(os.listdir("/proc/self/fd")) + threading.active_count()


def attack_rendezvous(count: int, chance: random.Random) -> Findings:
    """Attack a task that waits in the rendezvous; the lead comes in the end."""
    findings, cluster = Findings(), ClusterConfig.local(workers=2)
    member, marks = Task("worker", 1), marks_of(cluster, {})
    # Of another cluster: whoever knows this one's marks could act as its lead.
    other = marks_of(ClusterConfig.local(workers=2, ps=1), {"strategy": "multi_worker_mirrored"})
    recorded = [
        msgspec.json.encode(message) + b"\n"
        for message in (
            Call(other, "worker:1", {}, []),
            Call(other, "worker:1", {"worker:0": "x" * 150}, ["worker:0", "worker:1"]),
        )
    ]
    with _watched(findings) as begin, ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(hold_rendezvous, cluster.with_task(*member), marks, timeout=10**6)
        with _Caller(split_address(cluster.address(member)), chance) as caller:
            _wait_until(lambda: _listens(cluster.address(member)))
            for number in range(count):
                caller.send(mutated(chance, chance.choice(recorded)))
                findings.sessions += 1
                if waiting.done():
                    findings.let_in += 1
                    break
                if number == _WARM_UP:
                    begin()
        hold_rendezvous(cluster.with_task("worker", 0), marks, timeout=_SECONDS)
        findings.genuine += len(waiting.result(_SECONDS)) == 2
    return findings


def _listens(address: str) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(split_address(address), timeout=1):
        return True
    return False


def _wait_until(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + _SECONDS
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError("what an attack waits for does not come")
        time.sleep(0.01)


def attack_ps(count: int, chance: random.Random, encryption: bytes = b"") -> Findings:
    """Attack the listener of a parameter server, while a worker exchanges arrays with it."""
    findings, cluster = Findings(), ClusterConfig.local(workers=2, ps=1)
    with _watched(findings) as begin:
        server = ServerEndpoint(cluster.with_task("ps", 0), SECRET)
        address = ("127.0.0.1", int(server.listen(encryption)))
        addresses = written_addresses({0: address}, is_encrypted=bool(encryption))
        is_over = threading.Event()
        work = threading.Thread(target=_exchange, args=(server, cluster, addresses, is_over, findings))
        work.start()
        _wait_until(lambda: findings.genuine)  # which loads TensorFlow
        proofs = server._proofs(address[1], is_encrypted=bool(encryption))
        proof, hello = proofs.prove(b"caller", chance.randbytes(68)), chance.randbytes(12)
        recorded = chance.randbytes(NONCE_BYTES) + proof + hello
        with _Caller(address, chance) as caller:
            for number in range(count):
                findings.let_in += len(caller.send(mutated(chance, recorded))) > _GREETED
                findings.sessions += 1
                if number == _WARM_UP:
                    begin()
        is_over.set()
        work.join(_SECONDS)
        late = WorkerEndpoint(cluster.with_task("worker", 1), SECRET)
        if late.connect(addresses):
            findings.errors.append("a genuine worker that comes later is not let in")
        for each in (late, server):
            each.close()
    return findings


def _exchange(
    server: ServerEndpoint,
    cluster: ClusterConfig,
    addresses: bytes,
    is_over: threading.Event,
    findings: Findings,
) -> None:
    worker = WorkerEndpoint(cluster.with_task("worker", 0), SECRET)
    random_numbers = np.random.default_rng(0)
    while not is_over.is_set():
        arrays = [random_numbers.normal(size=700).astype("float32"), np.array(findings.genuine)]
        form = manifest_of(arrays).written()
        ticket = worker.begin(addresses)
        server.send(form, ticket, *arrays)
        found = worker.receive(form, ticket)
        if not all(np.array_equal(one, other) for one, other in zip(found, arrays, strict=True)):
            findings.errors.append("a genuine worker got other numbers")
        findings.genuine += 1
    worker.close()


def attack_messages(count: int, chance: random.Random) -> Findings:
    """Alter the messages of proven connections between a worker and a parameter server."""
    findings, arrays = Findings(), [np.arange(700, dtype="float32"), np.arange(6.0).reshape(2, 3)]
    form, recorded = manifest_of(arrays), b""
    with _watched(findings) as begin, socket.create_server(("127.0.0.1", 0), backlog=8) as listener:
        sender, reader = _connected(listener)
        sending = Channel("ps:0", sender)
        for step in (1, 2):
            sending.send(form, step, arrays, lambda seconds: "")
        recorded = reader.recv(1 << 20)
        reader.close()
        for number in range(count):
            near, far = _connected(listener)
            channel = Channel("worker:0", far)
            with near:
                near.sendall(mutated(chance, recorded))
            try:
                for step in (1, 2):
                    channel.receive(form, step, lambda seconds: "")
                findings.genuine += 1
            except ExchangeError:
                pass
            except Exception as error:  # noqa: BLE001  # any other is a finding
                findings.errors.append(f"{type(error).__name__}: {error}")
            del channel
            findings.sessions += 1
            if number == _WARM_UP:
                begin()
    return findings


def attack_encrypted_messages(count: int, chance: random.Random) -> Findings:
    """Alter encrypted messages: what comes is what was sent, or nothing."""
    findings, arrays = Findings(), [np.arange(700, dtype="float32"), np.arange(6.0).reshape(2, 3)]
    form = manifest_of(arrays)
    with _watched(findings) as begin, socket.create_server(("127.0.0.1", 0), backlog=8) as listener:
        for number in range(count):
            near, far = _connected(listener)
            sender, reader = _encrypted(near, far, chance.randbytes(32))
            for step in (1, 2):
                sender.send(form, step, arrays, lambda seconds: "")
            recorded = far.recv(1 << 20)
            with near:
                near.sendall(mutated(chance, recorded))
            try:
                for step in (1, 2):
                    found = reader.receive(form, step, lambda seconds: "")
                    is_same = all(np.array_equal(*each) for each in zip(found, arrays, strict=True))
                    findings.let_in += not is_same
                    findings.genuine += is_same
            except ExchangeError:
                pass
            except Exception as error:  # noqa: BLE001  # any other is a finding
                findings.errors.append(f"{type(error).__name__}: {error}")
            del sender, reader
            findings.sessions += 1
            if number == _WARM_UP:
                begin()
    return findings


def _connected(listener: socket.socket) -> tuple[socket.socket, socket.socket]:
    ends = socket.create_connection(listener.getsockname()), listener.accept()[0]
    for each in ends:
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return ends


def _encrypted(near: socket.socket, far: socket.socket, seed: bytes) -> tuple[Channel, Channel]:
    """Return channels at both ends of a connection, after TLS's handshake."""
    near.settimeout(_SECONDS)
    far.settimeout(_SECONDS)
    caller, called = TlsConnection(near, seed, is_caller=True), TlsConnection(far, seed, is_caller=False)
    greeting = threading.Thread(target=lambda: called.sendall(called.recv(1)))
    greeting.start()
    caller.sendall(b"x")
    caller.recv(1)
    greeting.join(_SECONDS)
    return Channel("worker:0", caller), Channel("ps:0", called)


def attack_doctor(count: int, chance: random.Random) -> Findings:
    """Attack a doctor that waits for others: from outside, and as a task that knows the secret."""
    findings, cluster = Findings(), ClusterConfig.local(workers=2)
    task, other = Task("worker", 0), Task("worker", 1)
    own, theirs = (Facts(task=str(each), cluster=fingerprint(cluster)) for each in (task, other))
    ends, proofs = ends_of(cluster, task), proofs_of(SECRET)
    handshake = chance.randbytes(NONCE_BYTES) + proofs.prove(b"caller", chance.randbytes(68))
    messages = [
        msgspec.json.encode(each) for each in (theirs, Clock(), Bulk(100), Measure("worker:1"), End())
    ]
    inside = b"".join(len(each).to_bytes(4, "big") + each for each in messages)
    address = split_address(cluster.address(task))
    with (
        _watched(findings) as begin,
        Answering(Participant(cluster, task, SECRET, own)),
        _Caller(address, chance) as caller,
    ):
        for number in range(count):
            if number % 10:
                findings.let_in += len(caller.send(mutated(chance, handshake + inside))) > _GREETED
            else:
                with call(address, ends, proofs, _SECONDS) as proven, contextlib.suppress(OSError):
                    proven.sendall(mutated(chance, inside))
                    proven.shutdown(socket.SHUT_WR)
                    _rest(proven)
            findings.sessions += 1
            if number % 100 == 0:
                with Link(call(address, ends, proofs, _SECONDS)) as link:
                    link.send(theirs)
                    link.receive(Facts)
                    link.send(Clock())
                    findings.genuine += link.receive(Time).seconds > 0
            if number == _WARM_UP:
                begin()
    return findings


ATTACKS: dict[str, Callable[[int, random.Random], Findings]] = {
    "a task in the rendezvous": attack_rendezvous,
    "the listener of a parameter server": attack_ps,
    "the listener of a parameter server, with TLS": partial(attack_ps, encryption=b"tls"),
    "messages of a proven connection": attack_messages,
    "messages of a connection with TLS": attack_encrypted_messages,
    "a waiting doctor": attack_doctor,
}
