"""The tasks of a cluster meet whoever else connects, and say whom they miss."""

import contextlib
import errno
import functools
import socket
import subprocess
import sys
import threading
import time
import types
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from tfdist.cluster.addresses_and_free_ports import is_free, split_address
from tfdist.cluster.config import ClusterConfig, Task
from tfdist.coordination.rendezvous import (
    answer_lead,
    call_members,
    find_waiting,
    hold_rendezvous,
    marks_of,
    messages,
)
from tfdist.coordination.rendezvous.messages import CLUSTER, MOST_BYTES, Call, difference
from tfdist.coordination.wait_for_tasks import _MAX_NAMED, Awaiting, await_servers
from tfdist.errors import ConfigError, TaskLost

SECONDS = 120  # a busy machine is no failure


@pytest.fixture
def cluster():
    return ClusterConfig.local(workers=3)


@pytest.fixture
def meeting():
    """Yield a function that starts a rendezvous of tasks, each in a thread that ends with the test."""
    with ThreadPoolExecutor() as pool:
        yield lambda cluster, *indices, timeout=SECONDS, marks=None: [
            pool.submit(_hold, cluster.with_task("worker", i), marks, timeout) for i in indices
        ]


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """Wait for every answer, however late it is."""
    monkeypatch.setattr("tfdist.coordination.grpc_health_probe._ANSWER_TIMEOUT", SECONDS)
    monkeypatch.setattr(answer_lead, "_LEAD_TIMEOUT", SECONDS)
    for module in (answer_lead, call_members, messages):
        monkeypatch.setattr(module, "SECONDS_TO_SPEAK", SECONDS)


@pytest.fixture
def clock(meeting, monkeypatch):
    """Yield an object whose `now` is the time of all waits for tasks; in the end it is late for all."""
    held = types.SimpleNamespace(now=0.0)
    clock = types.SimpleNamespace(monotonic=lambda: held.now, sleep=time.sleep)
    monkeypatch.setattr("tfdist.coordination.wait_for_tasks.time", clock)
    yield held
    held.now = float("inf")


@pytest.fixture
def told(monkeypatch):
    """Return what the lead has told each task, in the order in which the calls ended."""
    calls, exchange = [], call_members.exchange

    def exchange_and_note(connection, call):
        try:
            exchange(connection, call)
        finally:
            calls.append(call)

    monkeypatch.setattr(call_members, "exchange", exchange_and_note)
    return calls


def until(condition):
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def have_heard_twice(told, *tasks, of=None):
    """Return whether tasks were told twice of a missing one: what the first time was said is known then."""
    said = [call.task for call in told if of is None or "refused" in call.missing.get(of, "")]
    return all(said.count(task) >= 2 for task in tasks)


def _hold(cluster, marks, timeout):
    return hold_rendezvous(cluster, marks or marks_of(cluster, {}), timeout=timeout)


def port_of(cluster, index):
    return split_address(cluster.address(("worker", index)))[1]


def wait_until_taken(port):
    until(lambda: not is_free(port))


def problem(call):
    with pytest.raises(TaskLost) as found:
        call.result(SECONDS)
    return str(found.value)


def test_all_meet_whoever_comes_first_and_give_their_ports_back(cluster, meeting):
    late = meeting(cluster, 1, 2)
    for index in (1, 2):
        wait_until_taken(port_of(cluster, index))
    calls = [*meeting(cluster, 0), *late]

    assert [call.result(SECONDS) for call in calls] == [cluster.tasks()] * 3
    for index in range(3):
        with socket.create_server(("", port_of(cluster, index))):  # connections in TIME_WAIT are no hindrance
            pass


def test_a_task_without_files_gives_up_the_oldest_stranger_and_pauses(cluster, caplog, monkeypatch):
    pauses = []
    monkeypatch.setattr(answer_lead.time, "sleep", pauses.append)
    member = answer_lead.Member(cluster.with_task("worker", 1), {}, None)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        strangers = [socket.create_connection(listener.getsockname()) for _ in range(2)]
        for _ in strangers:
            member._accept(listener)
        refusing = types.SimpleNamespace(accept=functools.partial(_raise, OSError(errno.EMFILE, "Too many")))
        member._accept(refusing)
        member._accept(refusing)
        assert not member._deadlines
        assert len(pauses) == 2
        assert caplog.text.count("trying again") == 1
        for stranger in strangers:
            assert stranger.recv(1) == b""
            stranger.close()
    member._close()


def _raise(error):
    raise error


def test_the_evaluator_is_not_called(meeting):
    cluster = ClusterConfig.local(workers=2, chief=1, evaluator=1)
    with ThreadPoolExecutor() as pool:
        calls = [
            pool.submit(_hold, cluster.with_task(*task), None, SECONDS) for task in cluster.training().tasks()
        ]
        assert {call.result(SECONDS) for call in calls} == {cluster.training().tasks()}


def test_who_is_missing_is_named_by_all_and_in_the_end_given_up(
    cluster, meeting, caplog, monkeypatch, clock, told
):
    def warned():
        return [each.message for each in caplog.records if each.levelname == "WARNING"]

    monkeypatch.setattr("tfdist.coordination.wait_for_tasks._SECONDS_BEFORE_FIRST_REPORT", 0.5)
    disconnect, is_alone = answer_lead.Member._disconnect, threading.Event()
    monkeypatch.setattr(
        answer_lead.Member, "_disconnect", lambda *words: (disconnect(*words), is_alone.set())
    )
    lead, member = [*meeting(cluster, 0, timeout=4), *meeting(cluster, 1, timeout=6)]
    missing = f"worker:2 at {cluster.address(('worker', 2))}: connection refused"
    until(lambda: have_heard_twice(told, "worker:1", of="worker:2"))
    is_alone.clear()
    for count, clock.now in ((2, 0.5), (4, 1.0), (6, 2.0)):
        until(lambda count=count: len(warned()) >= count)
    for seconds in (0, 1, 2):
        for timeout in (4, 6):
            assert warned().count(f"waiting for {missing} ({seconds} s of {timeout} s)") == 1

    clock.now = 4.0
    assert problem(lead) == f"make_strategy: waited 4 s for {missing}. Start it, or see its log"
    assert is_alone.wait(SECONDS)
    clock.now = 6.0
    assert 6 <= len(warned()) <= 7  # the member, after 4 s
    assert problem(member) == (
        f"make_strategy: waited 6 s for worker:0 at {cluster.address(('worker', 0))}: connection refused;"
        " it was waiting for worker:2. Start it, or see its log"
    )


def test_a_wait_is_reported_ever_more_rarely_and_has_an_end(cluster, caplog, clock):
    awaiting, task = Awaiting("serve", cluster, 200), cluster.tasks()[2]
    for clock.now in range(200):
        if awaiting.is_due:
            awaiting.report({task: "is late"})
    clock.now = 200
    with pytest.raises(TaskLost, match=rf"^serve: waited 200 s for {task} at \S+: is late\. Start it"):
        awaiting.report({task: "is late"})
    waiting = f"waiting for {cluster.with_address(task)}: is late"
    assert [each.message for each in caplog.records] == [
        f"{waiting} ({seconds} s of 200 s)" for seconds in (5, 10, 20, 40, 80, 140)
    ]


def test_members_that_wait_for_one_are_not_called_for_each_answer(meeting, clock, told):
    cluster = ClusterConfig.local(workers=5)
    members = meeting(cluster, 1, 2, 3, timeout=4)
    for index in (1, 2, 3):
        wait_until_taken(port_of(cluster, index))
    [lead] = meeting(cluster, 0, timeout=2)
    began, named = time.monotonic(), ("worker:1", "worker:2", "worker:3")
    until(lambda: time.monotonic() - began > 1 and have_heard_twice(told, *named, of="worker:4"))
    clock.now = 2.0

    assert "worker:4" in problem(lead)
    assert {call.task for call in told} == {*named}
    # Each answer as a reason for the next calls makes it thousands.
    assert len(told) < 3 * (2 + (time.monotonic() - began) / call_members._SECONDS_BETWEEN_RETRIES)
    clock.now = 4.0
    for member in members:
        assert "worker:4" in problem(member)


def test_a_lead_that_does_not_come_is_named(cluster, meeting):
    lead = f"worker:0 at {cluster.address(('worker', 0))}"
    assert [problem(call) for call in meeting(cluster, 1, 2, timeout=1)] == [
        f"make_strategy: waited 1 s for {lead}: connection refused. Start it, or see its log"
    ] * 2


def test_why_somebody_cannot_be_reached_is_said(cluster, monkeypatch, unknown_host, clock):
    reasons, reason_of = [], call_members.reason_of
    monkeypatch.setattr(
        call_members, "reason_of", lambda error: reasons.append(reason_of(error)) or reasons[-1]
    )
    monkeypatch.setattr("tfdist.coordination.grpc_health_probe._ANSWER_TIMEOUT", 0.2)
    with (
        socket.create_server(("127.0.0.1", port_of(cluster, 1))),
        socket.create_server(("127.0.0.1", port_of(cluster, 2)), backlog=0) as full,
        contextlib.ExitStack() as stack,
    ):
        for _ in range(3):  # the kernel answers nobody more
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        others = ClusterConfig(worker=(*cluster.worker, f"{unknown_host}:2"), task=("worker", 0))
        pool = stack.enter_context(ThreadPoolExecutor())
        lead = pool.submit(hold_rendezvous, others, {}, timeout=2)
        ends = ("does not answer", "timed out", ")")
        # Twice: what the first time was found out is known then.
        until(lambda: all(sum(why.endswith(end) for why in reasons) >= 2 for end in ends))
        clock.now = 2.0
        servers = pool.submit(await_servers, "make_strategy", others, others.tasks()[1:], timeout=0)
        for call in (lead, servers):
            first, second, third = problem(call).split("; ")
            assert first.endswith("accepts connections and does not answer")
            assert second.endswith(": timed out")
            assert third.startswith(f"worker:3 at {unknown_host}:2: its name is unknown (")


def test_strangers_are_in_nobodys_way(cluster, meeting):
    members = meeting(cluster, 1, 2)
    address = ("127.0.0.1", port_of(cluster, 1))
    wait_until_taken(address[1])
    with contextlib.ExitStack() as stack:
        for words in [b""] * 40 + [
            b"GET / HTTP/1.1\r\n\r\n",
            b"\x16\x03\x01\n",
            b"{}\n",
            b'{"type": "call"}\n',
            b'{"type": "call", "marks": "\xff"}\n',
        ]:
            stranger = stack.enter_context(socket.create_connection(address, timeout=SECONDS))
            stranger.sendall(words)
        endless = b"x" * (1 << 26)
        with pytest.raises(OSError, match=r"reset|pipe"):
            stranger.sendall(endless)
        calls = [*meeting(cluster, 0), *members]
        assert [call.result(SECONDS) for call in calls] == [cluster.tasks()] * 3


def test_a_stranger_where_a_task_should_be_is_not_taken_for_it(cluster, clock):
    with socket.create_server(("", port_of(cluster, 1))) as stranger, ThreadPoolExecutor() as pool:
        small = ClusterConfig(worker=cluster.worker[:2], task=("worker", 0))
        stranger.settimeout(SECONDS)
        lead = pool.submit(hold_rendezvous, small, {}, timeout=10)
        for words in (
            b"SSH-2.0-OpenSSH_9.6\r\n",
            b"[" * 100_000,
            b'{"type": "answer", "marks": {"x": "\xff"}, "task": "x"}\n',
            b'{"type": "answer", "marks": {}, "task": "x"}\n',
        ):
            line, _ = stranger.accept()
            with line, contextlib.suppress(OSError):
                line.sendall(words)
                while line.recv(4096):
                    pass
        clock.now = 10.0
        assert "worker:1" in problem(lead)


def test_a_setting_that_differs_is_named_by_both_sides(cluster, meeting, clock, told):
    ours, theirs = (marks_of(cluster, {"strategy": 1, "precision": name}) for name in ("float32", "float16"))
    members = meeting(cluster, 1, 2, timeout=6, marks=theirs)
    for index in (1, 2):
        wait_until_taken(port_of(cluster, index))
    [lead] = meeting(cluster, 0, timeout=4, marks=ours)
    until(lambda: have_heard_twice(told, "worker:1", "worker:2"))
    clock.now = 4.0

    assert problem(lead).count("is a task of this cluster, but with another precision") == 2
    clock.now = 6.0
    for member in members:
        why = "connection refused; a task of this cluster, but with another precision, calls this task's address"
        assert why in problem(member)


def test_two_clusters_that_reach_each_other_do_not_mix(cluster, meeting, clock, told):
    others = marks_of(ClusterConfig.local(workers=2), {"strategy": 1})
    members = meeting(cluster, 1, 2, timeout=6, marks=others)
    for index in (1, 2):
        wait_until_taken(port_of(cluster, index))
    [lead] = meeting(cluster, 0, timeout=4)
    until(lambda: have_heard_twice(told, "worker:1", "worker:2"))
    clock.now = 4.0

    assert problem(lead).count("is a task of another cluster") == 2
    clock.now = 6.0
    for member in members:
        assert "connection refused; a task of another cluster, calls this task's address" in problem(member)


def test_a_name_from_the_network_is_not_printed():
    assert difference({CLUSTER: "a"}, {CLUSTER: "a", "\x1b[31m": "b"}) == (
        "this cluster, but with another configuration"
    )
    assert difference({CLUSTER: "a", "x": "b", "y": "c"}, {CLUSTER: "a"}) == (
        "this cluster, but with another x and another y"
    )


def test_the_marks_tell_clusters_and_settings_apart(cluster):
    marks = [
        marks_of(cluster, {}),
        marks_of(cluster, {"exchange": "ring"}),
        marks_of(cluster, {"exchange": "ring", "restarts": 0}),
        marks_of(cluster, {"exchange": "tcp", "restarts": 0}),
        marks_of(ClusterConfig(worker=cluster.worker[:2]), {}),
        marks_of(ClusterConfig(worker=cluster.worker[::-1]), {}),
    ]
    assert all(one != other for place, one in enumerate(marks) for other in marks[:place])
    assert marks_of(cluster.with_task("worker", 1), {}) == marks_of(cluster.with_task("worker", 0), {})


def test_a_task_that_comes_and_goes_is_awaited_again(cluster, meeting):
    code = (
        "from tfdist.cluster.config import ClusterConfig; from tfdist.coordination.rendezvous import *\n"
        f"cluster = ClusterConfig(worker={cluster.worker!r}, task=('worker', 2))\n"
        f"hold_rendezvous(cluster, marks_of(cluster, {{}}), timeout={SECONDS})\n"
    )
    lead = meeting(cluster, 0)
    for _ in range(2):
        with subprocess.Popen([sys.executable, "-c", code]) as process:
            wait_until_taken(port_of(cluster, 2))
            time.sleep(0.3)
            process.kill()
    member = meeting(cluster, 1)
    time.sleep(0.3)
    assert not lead[0].done()
    calls = [*lead, *member, *meeting(cluster, 2)]
    assert [call.result(SECONDS) for call in calls] == [cluster.tasks()] * 3


def test_a_taken_port_is_the_users_to_free(cluster):
    with (
        socket.create_server(("", port_of(cluster, 1))),
        pytest.raises(ConfigError, match="cannot be listened on"),
    ):
        hold_rendezvous(cluster.with_task("worker", 1), {}, timeout=1)


def test_a_lead_that_falls_silent_is_lost(cluster, monkeypatch, clock):
    monkeypatch.setattr("tfdist.coordination.rendezvous.answer_lead._LEAD_TIMEOUT", 0.5)
    marks = marks_of(cluster, {})
    with ThreadPoolExecutor() as pool:
        member = pool.submit(_hold, cluster.with_task("worker", 1), marks, 5)
        wait_until_taken(port_of(cluster, 1))
        with socket.create_connection(("127.0.0.1", port_of(cluster, 1)), timeout=SECONDS) as lead:
            lead.sendall(msgspec.json.encode(Call(marks, "worker:1", {}, [])) + b"\n")
            assert b'"worker:1"' in lead.recv(4096)
            assert lead.recv(4096) == b""
        clock.now = 5.0
        assert f"worker:0 at {cluster.address(('worker', 0))}: connection refused" in problem(member)


def test_enough_begin_without_those_who_do_not_come(cluster, meeting):
    marks, last = marks_of(cluster, {}), cluster.tasks()[2:]
    member = meeting(cluster, 1)[0]
    with ThreadPoolExecutor() as pool:
        lead = pool.submit(
            hold_rendezvous, cluster.with_task("worker", 0), marks, timeout=SECONDS, least=2, wait=1.0
        )
        assert lead.result(SECONDS) == member.result(SECONDS) == cluster.tasks()[:2]

    assert find_waiting(cluster, last, marks) == ()
    late = meeting(cluster, 2)[0]
    wait_until_taken(port_of(cluster, 2))
    assert find_waiting(cluster, last, marks) == last
    assert find_waiting(cluster, last, "another") == ()
    assert {call.result(SECONDS) for call in (late, *meeting(cluster, 0, 1))} == {cluster.tasks()}


def test_too_few_do_not_begin(cluster, meeting):
    member = meeting(cluster, 1, timeout=2)[0]
    with pytest.raises(TaskLost, match="worker:2"):
        hold_rendezvous(cluster.with_task("worker", 0), marks_of(cluster, {}), timeout=1.5, least=3, wait=0.5)
    assert "make_strategy: waited 2 s for worker:" in problem(member)


def test_all_of_a_thousand_tasks_may_be_missing_for_long_reasons():
    missing = {Task("worker", index): "its name is unknown " + "x" * 300 for index in range(1000)}
    told = call_members._short_enough(missing)
    call = Call({CLUSTER: "0" * 16}, "worker:0", told, [str(task) for task in missing])
    line = msgspec.json.encode(call)
    assert len(line) < MOST_BYTES
    assert set(msgspec.json.decode(line, type=Call).missing) == {str(task) for task in missing}
    assert {len(why) for why in list(told.values())[:_MAX_NAMED]} == {200}
