"""Where it is wanted, only the hosts of the cluster reach a task's port; all others are as if it did not exist."""

import contextlib
import errno
import socket
import sys
import threading
import time

import pytest

from tfdist.cluster.addresses_and_free_ports import listen_on_all_interfaces
from tfdist.cluster.config import ClusterConfig
from tfdist.coordination import only_peers
from tfdist.coordination.only_peers import ONLY_PEERS, admitting_only_peers
from tfdist.errors import ConfigError

HERE, PEER, STRANGER = "127.0.0.1", "127.0.0.2", "127.0.0.3"
SECONDS = 120  # a busy machine is no failure

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the system filters no sockets so")


@pytest.fixture
def cluster(monkeypatch):
    monkeypatch.setenv(ONLY_PEERS, "1")
    local = ClusterConfig.local(workers=2)
    port = local.worker[0].rpartition(":")[2]
    yield ClusterConfig(worker=(f"{HERE}:{port}", f"{PEER}:{port}")).with_task("worker", 0)
    for is_over in only_peers._later.values():
        is_over.set()
    only_peers._later.clear()


@contextlib.contextmanager
def listening(cluster):
    with admitting_only_peers(cluster):
        listener = listen_on_all_interfaces(cluster.worker[0])
    with listener:
        yield listener


def call(cluster, host, *, seconds=0.3):
    """Return a connection from a host to the task's port; None if the port does not answer."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    to = "::1" if ":" in host else HERE
    caller = socket.socket(family)
    caller.settimeout(seconds)
    caller.bind((host, 0))
    try:
        caller.connect((to, int(cluster.worker[0].rpartition(":")[2])))
    except TimeoutError:
        caller.close()
        return None
    return caller


def reaches(cluster, host):
    caller = call(cluster, host)
    if caller is not None:
        caller.close()
    return caller is not None


def test_only_hosts_of_the_cluster_reach_the_port(cluster):
    with listening(cluster):
        assert {host: reaches(cluster, host) for host in (HERE, PEER, STRANGER, "::1")} == {
            HERE: True,
            PEER: True,
            STRANGER: False,
            "::1": True,
        }


def test_by_default_everybody_reaches_it(cluster, monkeypatch):
    for value in ("0", ""):
        monkeypatch.setenv(ONLY_PEERS, value)
        with listening(cluster):
            assert reaches(cluster, STRANGER)


def test_packets_of_ipv6_are_told_apart_too(cluster, monkeypatch):
    monkeypatch.setattr(only_peers, "_LOOPBACK", ("::2", "2001:db8::1"))
    with listening(cluster):
        assert not reaches(cluster, "::1")
        assert reaches(cluster, PEER)


def test_what_a_peer_sends_arrives(cluster):
    with listening(cluster) as listener, call(cluster, PEER) as caller:
        own, _ = listener.accept()
        with own:
            caller.sendall(b"x" * 100_000)
            assert len(own.recv(100_000, socket.MSG_WAITALL)) == 100_000


def test_whoever_came_before_the_filter_is_disconnected(cluster, caplog):
    with (
        listen_on_all_interfaces(cluster.worker[0]) as listener,
        call(cluster, STRANGER) as stranger,
        call(cluster, PEER) as peer,
        listener.accept()[0],
        listener.accept()[0],
    ):
        with admitting_only_peers(cluster):
            pass
        assert stranger.recv(1) == b""
        peer.settimeout(0.2)
        with pytest.raises(TimeoutError):
            peer.recv(1)
    assert f"closed a connection from {STRANGER}" in caplog.text


def test_a_name_that_stands_for_another_host_is_looked_up_again(cluster, monkeypatch):
    places = {cluster.worker[0]: {(HERE, 0)}, cluster.worker[1]: {(PEER, 0)}}
    monkeypatch.setattr(only_peers, "peers_at", lambda address: places[address])
    monkeypatch.setattr(only_peers, "_SECONDS_BETWEEN_LOOKUPS", 0.0)
    monkeypatch.setattr(only_peers, "_SECONDS_BETWEEN_LATER_LOOKS", 0.05)
    with listening(cluster):
        assert not reaches(cluster, STRANGER)
        places[cluster.worker[1]] = {(STRANGER, 0)}
        end = time.monotonic() + SECONDS
        while not reaches(cluster, STRANGER):
            assert time.monotonic() < end
        assert not reaches(cluster, PEER)
        places[cluster.worker[1]] = set()  # no name server answers
        time.sleep(0.2)
        assert reaches(cluster, STRANGER)


def test_another_value_is_refused(cluster, monkeypatch):
    monkeypatch.setenv(ONLY_PEERS, "yes")
    with pytest.raises(ConfigError, match="TFDIST_ONLY_PEERS: expected 0 or 1, received 'yes'"):
        admitting_only_peers(cluster).__enter__()


@pytest.mark.parametrize(
    ("platform", "problem"), [("darwin", "needs Linux"), ("linux", "is not possible for 3")]
)
def test_where_it_is_not_possible_nothing_starts(cluster, monkeypatch, platform, problem):
    def no_memory(*_):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(only_peers, "_attach", no_memory)
    monkeypatch.setattr(only_peers.sys, "platform", platform)
    with pytest.raises(ConfigError, match=problem):
        admitting_only_peers(cluster).__enter__()


def test_a_thousand_hosts_fit():
    with socket.socket() as own:
        only_peers._attach(own, {f"10.0.{each // 250}.{each % 250}" for each in range(1000)})


def test_a_task_without_files_filters_what_listens_when_it_has_some(cluster, monkeypatch, caplog):
    guard, outcomes, is_over = only_peers._Guard(cluster, 1), [True, True, False], threading.Event()

    def look():
        if outcomes.pop(0):
            raise OSError(errno.EMFILE, "Too many open files")
        is_over.set()

    monkeypatch.setattr(guard, "look", look)
    guard.look_until(is_over, 0.01)
    assert caplog.text.count("cannot look what listens on port 1, trying again") == 1


def test_name_servers_that_do_not_answer_delay_no_filter(cluster, monkeypatch):
    answer, own = threading.Event(), threading.get_ident()

    def peers_at(address):
        if threading.get_ident() != own:
            answer.wait(SECONDS)
        return {(address.partition(":")[0], 0)}

    monkeypatch.setattr(only_peers, "peers_at", peers_at)
    monkeypatch.setattr(only_peers, "_SECONDS_BETWEEN_LOOKUPS", 0.0)
    try:
        with admitting_only_peers(cluster):
            time.sleep(0.1)  # it looks names up meanwhile
            with listen_on_all_interfaces(cluster.worker[0]):
                end = time.monotonic() + SECONDS / 2
                while reaches(cluster, STRANGER):
                    assert time.monotonic() < end
                    time.sleep(0.2)
                assert reaches(cluster, PEER)
    finally:
        answer.set()


def test_a_look_up_that_finds_no_room_for_a_thread_is_made_later(monkeypatch):
    cluster = ClusterConfig(worker=["127.0.0.1:1"]).with_task("worker", 0)
    monkeypatch.setattr(only_peers, "_SECONDS_BETWEEN_LOOKUPS", -1.0)
    guard, looked_up, start = only_peers._Guard(cluster, 1), threading.Event(), threading.Thread.start
    monkeypatch.setattr(guard._hosts, "look_up", lambda: looked_up.set() or frozenset())

    def no_room(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_room)
    guard.look()
    monkeypatch.setattr(threading.Thread, "start", start)
    guard.look()
    assert looked_up.wait(SECONDS)
