"""Only tasks that know the secret come into a ring, at the address of the cluster and while it is being made."""

import contextlib
import os
import socket
import stat
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from again import again
from tfdist.cluster.config import ClusterConfig
from tfdist.coordination import grpc_health_probe
from tfdist.coordination.grpc_health_probe import ServerSilence
from tfdist.errors import ConfigError
from tfdist.transport import join_ring as joining
from tfdist.transport import listen_and_call, unproven_callers
from tfdist.transport.authentication import find_secret
from tfdist.transport.join_ring import join_ring
from tfdist.transport.listen_and_call import ConnectError
from tfdist.transport.ring import Whole

SECRET, OTHER = b"a secret of these tests", b"another secret of theirs"
SECONDS = 300  # a busy machine is no failure


class Together:
    """Add up what threads say, as TensorFlow's collectives do for processes."""

    def __init__(self, count):
        self.barrier, self.lock, self.said = threading.Barrier(count), threading.Lock(), []
        self.seen = []

    def add_up(self, numbers):
        with self.lock:
            self.said.append(list(numbers))
        self.barrier.wait(SECONDS)
        found = np.sum(self.said, axis=0)
        if self.barrier.wait(SECONDS) == 0:
            self.seen.append(found)
            self.said.clear()
        self.barrier.wait(SECONDS)
        return found


def joined(cluster, secrets, meanwhile=lambda ports: None, encrypted=()):
    """Join a ring, in a thread for each task; return each task's ring or error, and the ports."""
    count = len(secrets)
    together = Together(count)

    def add_up(numbers):
        found = together.add_up(numbers)
        if len(found) > 1:
            meanwhile([int(port) for port in found])
        return found

    def join(index):
        try:
            mine = cluster.with_task("worker", index)
            return join_ring(mine, secrets[index], add_up, is_encrypted=index in encrypted)
        except ConnectError as error:
            return str(error)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(join, range(count))), [int(port) for port in together.seen[0]]


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    monkeypatch.setattr(joining, "_SECONDS_TO_CONNECT", SECONDS)
    for module in (listen_and_call, unproven_callers):
        for name in ("HANDSHAKE_TIMEOUT", "PROVEN_TIMEOUT"):
            monkeypatch.setattr(module, name, SECONDS)


def addresses_listened_at():
    """Return where this process listens; the system may give a closed port to another process."""
    found = set()
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):  # of the folder itself, which is closed by now
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                with socket.socket(fileno=os.dup(int(name))) as each:
                    if each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                        found.add(each.getsockname()[:2])
    return found


@pytest.mark.parametrize(("count", "encrypted"), [(2, ()), (3, ()), (3, range(3))])
def test_tasks_with_one_secret_make_a_ring_and_close_their_doors(count, encrypted):
    rings, ports = joined(ClusterConfig.local(workers=count), [SECRET] * count, encrypted=encrypted)

    try:
        assert not {port for _, port in addresses_listened_at()} & set(ports)
        values = [np.full(5, float(index)) for index in range(count)]
        with ThreadPoolExecutor(count) as pool:
            list(pool.map(lambda ring, mine: ring.add_up(Whole(mine)), rings, values))
        assert all(each.tolist() == [sum(range(count))] * 5 for each in values)
    finally:
        for ring in rings:
            ring.close()


@pytest.mark.parametrize(("last", "encrypted"), [(OTHER, ()), again(SECRET, (0, 1))])
def test_who_has_another_secret_or_encrypts_nothing_is_refused(monkeypatch, last, encrypted):
    monkeypatch.setattr(joining, "_SECONDS_TO_ACCEPT", 5.0)
    said, _ = joined(ClusterConfig.local(workers=3), [SECRET, SECRET, last], encrypted=encrypted)

    assert all(isinstance(each, str) for each in said)
    assert any("closes the connection: is its secret the same?" in each for each in said)
    assert any("no task that knows the secret has connected" in each for each in said)


def test_strangers_are_not_in_the_way():
    held = []

    def disturb(ports):
        for port in ports:
            silent = socket.create_connection(("127.0.0.1", port))
            loud = socket.create_connection(("127.0.0.1", port))
            loud.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)
            gone = socket.create_connection(("127.0.0.1", port))
            gone.close()
            held.extend((silent, loud))

    rings, _ = joined(ClusterConfig.local(workers=2), [SECRET] * 2, disturb)
    assert not any(isinstance(each, str) for each in rings)  # nobody has waited for what a stranger says
    for each in (*rings, *held):
        each.close()


def test_a_task_listens_on_its_own_address_alone():
    cluster = ClusterConfig(worker=["127.0.0.2:15001", "127.0.0.3:15002"])
    found = set()

    def look(ports):
        found.update(address for address in addresses_listened_at() if address[1] in ports)

    rings, _ = joined(cluster, [SECRET] * 2, look)
    for each in rings:
        each.close()

    assert {host for host, _ in found} == {"127.0.0.2", "127.0.0.3"}


def test_the_addresses_of_a_host_share_the_time_to_connect(monkeypatch):
    """The first one drops packets; the listener waits for no longer than the caller tries them all."""
    seconds = []

    class Socket(socket.socket):
        def connect(self, place):
            if place[0] == "203.0.113.1":
                seconds.append(self.gettimeout())
                raise TimeoutError
            super().connect(place)

    def of_host(host, port, *args, **options):
        hosts = ["203.0.113.1", "127.0.0.1"] if host == "two.example" else [host]
        return [entry for each in hosts for entry in addresses(each, port, *args, **options)]

    addresses = socket.getaddrinfo
    monkeypatch.setattr(socket, "socket", Socket)
    monkeypatch.setattr(socket, "getaddrinfo", of_host)
    rings, _ = joined(ClusterConfig(worker=["127.0.0.1:15001", "two.example:15002"]), [SECRET] * 2)
    for each in rings:
        each.close()

    assert len(seconds) == 1
    assert seconds[0] <= joining._SECONDS_TO_CONNECT / 2


def test_an_address_that_is_not_ones_own_is_said():
    cluster = ClusterConfig(worker=["203.0.113.1:15001", "127.0.0.1:15002"])
    said, _ = joined(cluster, [SECRET] * 2)

    assert said[0] == "cannot listen on 203.0.113.1: cannot assign requested address"
    assert said[1] == "another task is not connected to its neighbours; its log says why"


def test_a_secret_comes_from_a_variable_or_a_file(tmp_path):
    file = tmp_path / "secret"
    file.write_text(" from a file, and long\n")
    assert find_secret({}) is None
    assert find_secret({"TFDIST_SECRET_FILE": str(file)}) == b"from a file, and long"
    both = {"TFDIST_SECRET": "from a variable, and long", "TFDIST_SECRET_FILE": str(file)}
    assert find_secret(both) == b"from a variable, and long"
    for wrong, problem in (
        (
            {"TFDIST_SECRET": "short"},
            "TFDIST_SECRET: expected a secret of at least 16 characters, received one of 5",
        ),
        ({"TFDIST_SECRET_FILE": str(tmp_path / "none")}, "none: cannot be read: No such file or directory"),
    ):
        with pytest.raises(ConfigError, match=problem):
            find_secret(wrong)


def test_a_neighbour_that_answers_may_compute_for_as_long_as_it_likes(monkeypatch):
    answer = {"one": True, "other": None}
    clock = [100.0]
    monkeypatch.setattr(grpc_health_probe, "answers", answer.get)
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    asked = ServerSilence({"worker:0": "one", "worker:1": "other"}, None)

    def after(seconds, idle):
        clock[0] += seconds
        return asked.why_lost(idle)

    assert [after(3, idle) for idle in (3, 6, 9)] == [""] * 3
    assert after(3, 12) == "worker:1 has been silent for 12 s"
    answer["other"] = True
    assert after(3, 15) == ""
    answer["other"] = None
    assert after(600, 615) == ""  # this process was stopped itself
    assert "communication.timeout is 4 s" in ServerSilence({}, 4.0).why_lost(4.5)
