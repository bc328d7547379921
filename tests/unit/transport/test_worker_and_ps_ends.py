"""A message comes as it was sent, to the step that it belongs to, from tasks that know the secret; or not at all."""

import contextlib
import errno
import itertools
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf
from fuzzing import manifest_of

from tfdist.cluster.config import ClusterConfig
from tfdist.coordination.answer_health_checks import answering_health_checks
from tfdist.transport import listen_and_call, unproven_callers, worker_and_ps_ends
from tfdist.transport import shared_memory as shared
from tfdist.transport.authentication import Proofs
from tfdist.transport.channel import Channel
from tfdist.transport.listen_and_call import ConnectError, ExchangeError, call
from tfdist.transport.worker_and_ps_ends import ServerEndpoint, WorkerEndpoint, written_addresses

SECRET, OTHER = b"a secret of these tests", b"another secret of theirs"
HEADER = 45  # bytes
SECONDS = 300  # a busy machine is no failure

by_memory = pytest.mark.skipif(
    not hasattr(os, "memfd_create"), reason="the system has no memory of this kind"
)


@pytest.fixture(autouse=True)
def no_time_to_end(monkeypatch):
    monkeypatch.setattr(worker_and_ps_ends, "_SECONDS_TO_BE_GONE", 0.01)


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    monkeypatch.setattr(worker_and_ps_ends, "_SECONDS_TO_CONNECT", SECONDS)
    for module in (listen_and_call, unproven_callers):
        for name in ("HANDSHAKE_TIMEOUT", "PROVEN_TIMEOUT"):
            monkeypatch.setattr(module, name, SECONDS)


@pytest.fixture
def nowhere():
    """Yield an address that refuses connections, and that no other process takes meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()


@pytest.fixture
def cluster():
    return ClusterConfig.local(workers=2, ps=1)


@pytest.fixture
def pool():
    with ThreadPoolExecutor(4) as threads:
        yield threads


@pytest.fixture
def encryption():
    return b""


@pytest.fixture
def ends(cluster, pool, encryption):  # which wait for nothing any more when the threads are waited for
    """Open the endpoints of a server and two workers, and yield them with the server's address."""
    made = [ServerEndpoint(cluster.with_task("ps", 0), SECRET)]
    made += [WorkerEndpoint(cluster.with_task("worker", index), SECRET) for index in range(2)]
    servers = {0: ("127.0.0.1", int(made[0].listen(encryption)))}
    yield *made, written_addresses(servers, is_encrypted=bool(encryption))
    for each in made:
        each.close()


def manifest(*arrays, **changes):
    return manifest_of(arrays, **changes).written()


def arrays_of(seed, size=1000):
    rng = np.random.default_rng(seed)
    return [
        rng.normal(size=(size, 3)).astype("float32"),
        rng.normal(size=7),
        np.array(seed),
        np.zeros((0, 4), "float32"),
        rng.normal(size=5).astype(tf.bfloat16.as_numpy_dtype),
        rng.normal(size=(1, 300)).astype("float32"),
    ]


def same(found, arrays):
    return all(
        np.array_equal(one, other) and one.dtype == other.dtype
        for one, other in zip(found, arrays, strict=True)
    )


@pytest.mark.parametrize("encryption", [b"", b"tls"])
def test_all_of_a_step_goes_down_and_up(ends, pool):
    server, *workers, addresses = ends
    sizes = (1000, 700_000)  # the second is more than the system's buffers hold
    for step, size in enumerate(sizes):
        tickets = [worker.begin(addresses) for worker in workers]
        for index, (worker, ticket) in enumerate(zip(workers, tickets, strict=True)):
            down, up = arrays_of(step, size), arrays_of(10 + index, size)
            forms = manifest(*down), manifest(*up, name="up 1", is_state=False)
            ends_of_server = (
                pool.submit(server.send, forms[0], ticket, *down),
                pool.submit(server.receive, forms[1], ticket),
            )
            assert same(worker.receive(forms[0], ticket), down)
            worker.hand_over(forms[1], ticket, *up)
            ends_of_server[0].result(SECONDS)
            assert same(ends_of_server[1].result(SECONDS), up)
    each = [sum(array.nbytes for array in arrays_of(0, size)) for size in sizes]
    assert server.moved() == 4 * sum(each) + 8 * HEADER


@by_memory
def test_tasks_of_one_machine_leave_messages_in_memory(ends):
    server, worker, _, addresses = ends
    for step, size in enumerate((1000, 100_000, 10)):
        down, up = arrays_of(step, size), arrays_of(10 + step, size)
        forms = [manifest(*down, may_share=True), manifest(*up, name="up 1", is_state=False, may_share=True)]
        ticket = worker.begin(addresses)
        server.send(forms[0], ticket, *down)
        assert same(worker.receive(forms[0], ticket), down)
        worker.hand_over(forms[1], ticket, *up)
        assert same(server.receive(forms[1], ticket), up)
    assert server.moved() == 6 * HEADER


@by_memory
def test_what_is_still_held_is_not_written_to(ends):
    server, worker, _, addresses = ends
    messages = [arrays_of(step) for step in range(6)]
    form, held, moved = manifest(*messages[0], may_share=True), [], [0]
    for step, message in enumerate(messages):
        if step == 4:
            held[1] = None
        ticket = worker.begin(addresses)
        server.send(form, ticket, *message)
        held.append(worker.receive(form, ticket))
        answer = manifest(np.zeros(1), name="up", is_state=False)
        worker.hand_over(answer, ticket, np.zeros(1))  # and say what was given back
        server.receive(answer, ticket)
        moved.append(int(server.moved()))

    sizes = [sum(array.nbytes for array in message) for message in messages]
    answers = HEADER + 8
    by_line = [now - before - HEADER - answers for before, now in itertools.pairwise(moved)]
    assert by_line == [0, 0, *sizes[2:]]  # two were held; and the second is given back after the first
    assert all(same(each, message) for each, message in zip(held, messages, strict=True) if each)


@by_memory
@pytest.mark.parametrize("lie", ["another process", "another nonce", "no memory", "nothing"])
def test_what_is_not_the_same_memory_is_not_taken_for_it(lie, tmp_path):
    (tmp_path / "file").write_bytes(bytes(100))
    with (tmp_path / "file").open("r+b") as file, ThreadPoolExecutor(1) as pool:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            found = pool.submit(shared.share_memory, ours)
            process, number, nonce = shared._OFFER.unpack(theirs.recv(shared._OFFER.size))
            told = {
                "another process": (1 << 40, number, nonce),
                "another nonce": (process, number, nonce[::-1]),
                "no memory": (process, file.fileno(), bytes(len(nonce))),
                "nothing": (-1, -1, b""),
            }
            theirs.sendall(shared._OFFER.pack(*told[lie]))

            assert theirs.recv(1) == b"-"
            theirs.sendall(b"+")
            assert found.result(SECONDS) is None


def test_a_proven_task_that_stalls_is_waited_for_longer_than_a_stranger(monkeypatch):
    monkeypatch.setattr(listen_and_call, "HANDSHAKE_TIMEOUT", 0.01)
    ours, theirs = socket.socketpair()
    with ours, theirs, ThreadPoolExecutor(1) as pool:
        sharing = pool.submit(shared.share_memory, ours)
        with pytest.raises(TimeoutError):
            sharing.result(0.3)
        assert shared.share_memory(theirs, may=False) is None
        assert sharing.result(SECONDS) is None


def test_what_is_left_of_a_step_that_was_given_up_is_no_part_of_the_next(ends, pool):
    server, worker, _, addresses = ends
    first, second = arrays_of(1), arrays_of(2)
    down, up = manifest(*first), manifest(*first, name="up 1", is_state=False)
    given_up = worker.begin(addresses)
    server.send(down, given_up, *first)  # and the worker never takes it
    waiting = pool.submit(server.receive, up, given_up)  # and never sends this
    ticket = worker.begin(addresses)
    server.send(down, ticket, *second)
    assert same(worker.receive(down, ticket), second)
    worker.hand_over(up, ticket, *second)
    assert same(server.receive(up, ticket), second)
    with pytest.raises(ExchangeError, match="given up"):
        waiting.result(SECONDS)


def test_another_size_is_refused(ends):
    server, worker, _, addresses = ends
    ticket = worker.begin(addresses)
    server.send(manifest(*arrays_of(1, 10)), ticket, *arrays_of(1, 10))

    with pytest.raises(ExchangeError, match="does not send what this task expects"):
        worker.receive(manifest(*arrays_of(1, 11)), ticket)


@pytest.mark.parametrize("encryption", [b"tls"])
def test_who_encrypts_nothing_is_not_let_in_where_others_do(ends, encryption):
    server, worker, other, addresses = ends
    port = int(server.listen(encryption))
    said = other.connect(written_addresses({0: ("127.0.0.1", port)}))
    assert b"closes the connection: is its secret the same?" in said
    assert b"encryption was changed" in server.listen(b"")
    assert worker.connect(addresses) == b""


def test_strangers_and_tasks_of_an_earlier_start_are_not_let_in(ends, cluster):
    server, _, _, addresses = ends
    stranger = WorkerEndpoint(cluster.with_task("worker", 0), OTHER)
    said = stranger.connect(addresses)
    later = ServerEndpoint(cluster.with_task("ps", 0), SECRET)
    try:
        assert said.startswith(f"ps:0 at {cluster.address(('ps', 0))}: ".encode())
        with socket.create_connection(("127.0.0.1", int(server.listen(b"")))) as line:
            line.sendall(b"x" * 200)
            time.sleep(0.1)
        assert ends[1].connect(addresses) == b""
        assert server.moved() == 0
    finally:
        later.close()


@pytest.mark.parametrize(
    "hello", [worker_and_ps_ends._HELLO.pack(99, 1), b"x"], ids=["no such worker", "too short"]
)
def test_a_worker_that_the_cluster_does_not_have_is_in_nobodys_way(ends, hello):
    server, worker, _, addresses = ends
    port = int(server.listen(b""))
    proofs = server._proofs(port, is_encrypted=False)
    with call(("127.0.0.1", port), worker_and_ps_ends._pack_server(0), proofs, SECONDS) as connection:
        connection.sendall(hello)
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""
        assert worker.connect(addresses) == b""


def test_a_worker_that_comes_back_gets_a_new_line_and_the_old_one_is_cut(ends, cluster, pool):
    server, worker, _, addresses = ends
    down, up = arrays_of(1), manifest(*arrays_of(1), name="up 1", is_state=False)
    old = worker.begin(addresses)
    waiting = pool.submit(server.receive, up, old)
    again = WorkerEndpoint(cluster.with_task("worker", 0), SECRET)
    ticket = again.begin(addresses)
    with pytest.raises(ExchangeError, match="worker:0"):
        waiting.result(SECONDS)
    server.send(manifest(*down), ticket, *down)

    assert same(again.receive(manifest(*down), ticket), down)
    again.close()


def test_one_broken_line_ends_the_step_on_all_of_them(cluster):
    of_two = ClusterConfig.local(workers=1, ps=2)
    servers = [ServerEndpoint(of_two.with_task("ps", index), SECRET) for index in range(2)]
    worker = WorkerEndpoint(of_two.with_task("worker", 0), SECRET)
    addresses = written_addresses({i: ("127.0.0.1", int(each.listen(b""))) for i, each in enumerate(servers)})
    forms = [manifest(np.zeros(3, "float32"), name="down", server=index) for index in range(2)]
    ticket = worker.begin(addresses)
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(worker.receive, form, ticket) for form in forms]
        servers[1].close()
        for each in waiting:
            with pytest.raises(ExchangeError, match=r"ps:1 .* gone|given up"):
                each.result(SECONDS)
    servers[1] = ServerEndpoint(of_two.with_task("ps", 1), SECRET)
    servers[0].close()
    servers[1].close()
    worker.close()


def test_a_server_that_is_silent_is_lost(ends, monkeypatch):
    _, worker, _, addresses = ends
    asked = []

    class Lost:
        def __init__(self, addresses, timeout, limit):
            asked.append((list(addresses), timeout))

        def why_lost(self, seconds):
            return f"has been silent for {seconds:.0f} s" if seconds > 1.5 else ""

    monkeypatch.setattr(worker_and_ps_ends, "ServerSilence", Lost)
    ticket = worker.begin(addresses)

    with pytest.raises(ExchangeError, match=r"silent for \d+ s"):
        worker.receive(manifest(np.zeros(3), timeout=9.0), ticket)
    assert len(asked) == 1
    assert asked[0][1] == 9.0


def stopped(address):
    """Return a listener like that of a stopped process: the system accepts connections, and nothing answers."""
    host, port = address.rsplit(":", 1)
    return socket.create_server((host, int(port)))


def test_asynchronous_workers_that_are_silent_leave_the_servers_threads_to_the_others(monkeypatch):
    monkeypatch.setattr(worker_and_ps_ends, "_SECONDS_FOR_CHIEF", 0.5)
    of_nine = ClusterConfig.local(workers=9, ps=1)
    server = ServerEndpoint(of_nine.with_task("ps", 0), SECRET, heartbeat_timeout=0.5)
    *silent, genuine = [WorkerEndpoint(of_nine.with_task("worker", index), SECRET) for index in range(9)]
    addresses = written_addresses({0: ("127.0.0.1", int(server.listen(b"")))})
    down, up = arrays_of(1, 10), manifest(*arrays_of(1, 10), name="up 1", is_state=False)
    tickets = [worker.begin(addresses) for worker in silent]
    with contextlib.ExitStack() as stack:
        stack.callback(server.close)
        for index in range(len(silent)):
            stack.enter_context(stopped(of_nine.address(("worker", index))))
        threads = stack.enter_context(ThreadPoolExecutor(len(silent)))  # as many as TensorFlow's, by default
        waiting = [threads.submit(server.receive, up, ticket) for ticket in tickets]
        ticket = genuine.begin(addresses)
        threads.submit(server.send, manifest(*down), ticket, *down).result(SECONDS)
        assert same(genuine.receive(manifest(*down), ticket), down)
        for index, each in enumerate(waiting):
            with pytest.raises(ExchangeError, match=f"worker:{index} at .* has been silent"):
                each.result(SECONDS)
    for worker in (*silent, genuine):
        worker.close()


class Ended(Exception):
    """The process has ended, in these tests."""


@pytest.fixture
def ended(monkeypatch):
    """Return the errors with which this process would have ended."""
    errors = []

    def end(error):
        errors.append(str(error))
        raise Ended

    monkeypatch.setattr(worker_and_ps_ends, "end_process", end)
    return errors


@pytest.mark.parametrize(
    ("is_in_step", "is_there", "is_over"),
    [(True, True, False), (False, True, False), (False, False, False), (False, True, True)],
    ids=["in step", "asynchronous", "asynchronous, and the server is gone", "asynchronous, at the end"],
)
def test_an_asynchronous_worker_that_a_server_has_cut_ends(cluster, ended, is_in_step, is_there, is_over):
    server = ServerEndpoint(cluster.with_task("ps", 0), SECRET)
    worker = WorkerEndpoint(cluster.with_task("worker", 0), SECRET, is_over=lambda: is_over)
    form = manifest(np.zeros(3), is_in_step=is_in_step)
    expected = Ended if not is_in_step and is_there and not is_over else ExchangeError
    with answering_health_checks(cluster.address(("ps", 0))) if is_there else contextlib.nullcontext():
        ticket = worker.begin(written_addresses({0: ("127.0.0.1", int(server.listen(b"")))}))
        server.close()
        for exchange in (worker.receive, worker.hand_over):
            with pytest.raises(expected):
                exchange(form, ticket)
    worker.close()
    assert len(ended) == (2 if expected is Ended else 0)
    if ended:
        assert f"worker:0 at {cluster.address(('worker', 0))}: has no connection to a ps any more" in ended[0]


def test_an_asynchronous_worker_that_computes_notices_that_a_server_has_cut_it(cluster, ended):
    server = ServerEndpoint(cluster.with_task("ps", 0), SECRET)
    worker, has_ended = WorkerEndpoint(cluster.with_task("worker", 0), SECRET), threading.Event()
    worker._end_without = lambda server, why: ended.append((server, why)) or has_ended.set()
    worker.begin(written_addresses({0: ("127.0.0.1", int(server.listen(b"")))}, is_in_step=False))
    server.close()
    assert has_ended.wait(SECONDS)
    worker.close()
    worker._watch.join(SECONDS)
    assert ended == [(0, f"ps:0 at {cluster.address(('ps', 0))} is gone: the connection is broken")]


def test_an_asynchronous_worker_ends_that_cannot_send_what_it_has_handed_over(cluster, ended, monkeypatch):
    def write_all(channel, *_):
        raise ExchangeError(f"{channel.name} takes nothing")

    monkeypatch.setattr(Channel, "_write_all", write_all)
    server = ServerEndpoint(cluster.with_task("ps", 0), SECRET)
    worker, has_ended = WorkerEndpoint(cluster.with_task("worker", 0), SECRET), threading.Event()
    worker._end_without = lambda server, why: ended.append((server, why)) or has_ended.set()
    ticket = worker.begin(written_addresses({0: ("127.0.0.1", int(server.listen(b"")))}))
    gradient = np.zeros(3)
    worker.hand_over(manifest(gradient, is_in_step=False, is_state=False), ticket, gradient)
    assert has_ended.wait(SECONDS)
    assert ended == [(0, f"ps:0 at {cluster.address(('ps', 0))} takes nothing")]
    worker.close()
    server.close()


def test_an_asynchronous_worker_that_cannot_connect_to_a_server_that_is_there_ends(cluster, ended, nowhere):
    worker = WorkerEndpoint(cluster.with_task("worker", 0), SECRET)
    with answering_health_checks(cluster.address(("ps", 0))):
        with pytest.raises(Ended):
            worker.begin(written_addresses({0: nowhere}, is_in_step=False))
        with pytest.raises(ExchangeError, match="cannot be reached"):
            worker.begin(written_addresses({0: nowhere}))
        assert b"cannot be reached" in worker.connect(written_addresses({0: nowhere}, is_in_step=False))
    worker.close()


@pytest.mark.parametrize("what", ["ends", "connects again", "is in step"])
def test_a_server_keeps_its_error_until_an_asynchronous_worker_has_ended(cluster, pool, what, monkeypatch):
    monkeypatch.setattr(worker_and_ps_ends, "_SECONDS_TO_BE_NOTICED", 0.01)
    server = ServerEndpoint(cluster.with_task("ps", 0), SECRET)
    worker = WorkerEndpoint(cluster.with_task("worker", 0), SECRET)
    addresses = written_addresses({0: ("127.0.0.1", int(server.listen(b"")))})
    form = manifest(np.zeros(3), is_state=False, is_in_step=what == "is in step")
    with answering_health_checks(cluster.address(("worker", 0))):
        waiting = pool.submit(server.receive, form, worker.begin(addresses))
        time.sleep(0.1)
        worker.close()
        if what != "is in step":
            with pytest.raises(TimeoutError):
                waiting.result(1)
        if what == "connects again":
            again = WorkerEndpoint(cluster.with_task("worker", 0), SECRET)
            again.begin(addresses)
            again.close()
        if what != "ends":
            with pytest.raises(ExchangeError):
                waiting.result(SECONDS)
    with pytest.raises(ExchangeError):
        waiting.result(SECONDS)
    server.close()


WIDTHS = {"bfloat16": 2**-8, "float16": 2**-11}


@pytest.mark.parametrize("wire_type", WIDTHS)
@pytest.mark.parametrize("is_state", [True, False])
def test_numbers_of_32_bits_may_go_in_16(ends, wire_type, is_state):
    server, worker, _, addresses = ends
    arrays = arrays_of(1)
    form = manifest(*arrays, wire_type=wire_type, is_state=is_state)
    ticket = worker.begin(addresses)
    server.send(form, ticket, *arrays)
    found = worker.receive(form, ticket)

    whole = sum(each.nbytes for each in arrays)
    singles = sum(each.nbytes for each in arrays if each.dtype == np.float32)
    assert server.moved() <= HEADER + whole - singles // 2 + 2 * 64  # bytes between the arrays
    for one, other in zip(found, arrays, strict=True):
        if other.dtype == np.float32:
            np.testing.assert_allclose(one, other, rtol=WIDTHS[wire_type])
        else:
            assert one.tobytes() == other.tobytes()


def test_variables_in_8_bits_are_what_they_are_in_a_few_steps(ends):
    server, worker, _, addresses = ends
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(257, 5)).astype("float32")
    form = manifest(weights, wire_type="int8")
    seen, moved = [], []
    for step in range(8):
        if step == 2:
            weights = weights + rng.normal(scale=0.1, size=weights.shape).astype("float32")
        if step == 5:
            weights = np.where(weights > 2, np.float32(np.nan), weights)
        if step == 6:
            weights = rng.normal(size=weights.shape).astype("float32")
        ticket, before = worker.begin(addresses), server.moved()
        server.send(form, ticket, weights)
        [found] = worker.receive(form, ticket)
        moved.append(int(server.moved() - before - HEADER))
        seen.append(float(np.abs(found - weights).max()))

    assert seen[:2] == [0, 0]  # the first goes whole, and then there is no difference
    assert 0 < seen[2] < 0.1 * 5 / 127
    assert seen[3] < seen[2] / 50
    assert seen[4] < 1e-6
    assert np.isnan(seen[5])
    assert seen[6] == 0  # what is not a number goes whole, and so does what comes after it
    assert {moved[step] for step in (0, 5, 6)} == {weights.nbytes + len(form)}
    blocks = -(-weights.size // 256)
    assert {moved[step] for step in (1, 2, 3, 4, 7)} == {260 * blocks}


def test_gradients_in_8_bits_lose_nothing_in_the_long_run(ends):
    server, worker, _, addresses = ends
    gradient = np.random.default_rng(0).normal(size=1000).astype("float32")
    form = manifest(gradient, wire_type="int8", is_state=False, name="up 1")
    total = np.zeros(1000)
    for _ in range(50):
        ticket = worker.begin(addresses)
        worker.hand_over(form, ticket, gradient)
        [found] = server.receive(form, ticket)
        total += found
    step = np.abs(gradient).max() / 127

    assert np.abs(total - 50 * gradient.astype("float64")).max() < 2 * step  # of 50 roundings


def test_a_connection_that_comes_while_the_server_closes_is_closed(monkeypatch):
    is_closed, share_memory = threading.Event(), worker_and_ps_ends.share_memory

    def share_slowly(connection):
        memories = share_memory(connection)
        if "_accept_worker" in threading.current_thread().name:  # the server's end
            assert is_closed.wait(SECONDS)
        return memories

    monkeypatch.setattr(worker_and_ps_ends, "share_memory", share_slowly)
    of_one = ClusterConfig.local(workers=1, ps=1)
    server = ServerEndpoint(of_one.with_task("ps", 0), SECRET)
    worker = WorkerEndpoint(of_one.with_task("worker", 0), SECRET)
    ticket = worker.begin(written_addresses({0: ("127.0.0.1", int(server.listen(b"")))}))
    server.close()
    is_closed.set()
    form = manifest(np.zeros(3, "float32"))
    with pytest.raises(ExchangeError, match=r"ps:0 .* gone"):
        worker.receive(form, ticket)
    worker.close()


def test_a_step_given_up_between_the_first_variables_and_their_difference_loses_nothing(ends):
    server, worker, _, addresses = ends
    rng = np.random.default_rng(0)
    weights = [rng.normal(size=(300, 2)).astype("float32") for _ in range(2)]
    forms = [manifest(each, wire_type="int8", name=f"down {at}") for at, each in enumerate(weights)]
    given_up = worker.begin(addresses)  # and the worker takes nothing of this step
    for form, each in zip(forms, weights, strict=True):
        server.send(form, given_up, each)
    ticket = worker.begin(addresses)
    for form, each in zip(forms, weights, strict=True):
        server.send(form, ticket, each)

    assert all(same(worker.receive(form, ticket), [each]) for form, each in zip(forms, weights, strict=True))


def test_a_worker_connects_to_all_servers_at_once_and_keeps_the_connections_it_gets(monkeypatch, nowhere):
    of_three = ClusterConfig.local(workers=1, ps=3)
    servers = [ServerEndpoint(of_three.with_task("ps", index), SECRET) for index in range(3)]
    worker = WorkerEndpoint(of_three.with_task("worker", 0), SECRET)
    ports = {i: ("127.0.0.1", int(each.listen(b""))) for i, each in enumerate(servers)}
    all_are_called = threading.Barrier(3, timeout=SECONDS)

    def call_with_others(*args):
        all_are_called.wait()
        return call(*args)

    monkeypatch.setattr(worker_and_ps_ends, "call", call_with_others)
    why = worker.connect(written_addresses({**ports, 1: nowhere}))
    assert why.startswith(f"ps:1 at {of_three.address(('ps', 1))}: ".encode())
    monkeypatch.setattr(worker_and_ps_ends, "call", call)
    kept = [worker._channels[0], worker._channels[2]]
    assert worker.connect(written_addresses(ports)) == b""
    assert [worker._channels[0], worker._channels[2]] == kept
    for each in (worker, *servers):
        each.close()


def test_a_worker_that_cannot_connect_to_a_server_tries_no_further_ones(monkeypatch):
    """Behind a firewall that drops packets, each would take as long as the first."""
    of_five, called = ClusterConfig.local(workers=1, ps=5), []

    def call_nobody(address, *_):
        called.append(address)
        raise ConnectError("does not answer")

    monkeypatch.setattr(worker_and_ps_ends, "_MOST_THREADS", 1)
    monkeypatch.setattr(worker_and_ps_ends, "call", call_nobody)
    worker = WorkerEndpoint(of_five.with_task("worker", 0), SECRET)
    why = worker.connect(written_addresses({index: ("10.0.0.1", index + 1) for index in range(5)}))
    assert why == f"ps:0 at {of_five.address(('ps', 0))}: does not answer".encode()
    assert called == [("10.0.0.1", 1)]


@pytest.mark.parametrize("what", ["files", "threads"])
def test_a_server_without_files_or_threads_accepts_workers_when_it_has_some(ends, what, monkeypatch):
    _, worker, other, addresses = ends
    failures = [OSError(errno.EMFILE, "Too many open files")]
    connect, start = Proofs.connection, threading.Thread.start

    def connection(self, *args, is_caller):
        if failures and not is_caller:
            raise failures.pop()
        return connect(self, *args, is_caller=is_caller)

    def start_thread(self):
        if failures and "accept_worker)" in self.name:
            raise RuntimeError(failures.pop())
        start(self)

    if what == "files":
        monkeypatch.setattr(Proofs, "connection", connection)
    else:
        monkeypatch.setattr(threading.Thread, "start", start_thread)
    assert b"closes the connection" in worker.connect(addresses)
    assert not failures
    assert [worker.connect(addresses), other.connect(addresses)] == [b"", b""]


def test_a_worker_connects_again_to_a_server_that_was_started_again(ends, cluster):
    server, worker, _, addresses = ends
    assert worker.connect(addresses) == b""
    server.close()  # and the worker sends nothing that would tell it
    again = ServerEndpoint(cluster.with_task("ps", 0), SECRET)
    addresses = written_addresses({0: ("127.0.0.1", int(again.listen(b"")))})
    assert worker.connect(addresses) == b""
    ticket, down = worker.begin(addresses), arrays_of(1)
    again.send(manifest(*down), ticket, *down)

    assert same(worker.receive(manifest(*down), ticket), down)
    again.close()
