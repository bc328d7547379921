import gc
import os
import socket
import subprocess
import sys

import pytest

from tfdist.cluster.addresses_and_free_ports import LocalPorts, split_address


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("localhost:2222", ("localhost", 2222)),
        ("10.0.0.1:1", ("10.0.0.1", 1)),
        ("[::1]:65535", ("::1", 65535)),
        ("[2001:DB8:0::1]:80", ("2001:db8::1", 80)),
        ("GPU-1.Example.com.:80", ("gpu-1.example.com", 80)),
        ("my_container:80", ("my_container", 80)),
        ("a:007", ("a", 7)),
    ],
)
def test_an_address_is_a_host_and_a_port(address, parts):
    assert split_address(address) == parts


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("localhost", "no port"),
        (":80", "no host"),
        ("", "no port"),
        ("a:", "not a number"),
        ("a:8o", "not a number"),
        ("a:٣", "not a number"),
        ("a:0", "not in 1…65535"),
        ("a:65536", "not in 1…65535"),
        ("a:-1", "not a number"),
        ("::1:80", "needs brackets"),
        ("[::g]:80", "not a valid IPv6 address"),
        ("[1.2.3.4]:80", "not a valid IPv6 address"),
        ("1.2.3:80", "not a valid IPv4 address"),
        ("300.1.1.1:80", "not a valid IPv4 address"),
        ("grpc://a:80", "names a protocol"),
        ("a b:80", "not a valid DNS name"),
        ("-a:80", "not a valid DNS name"),
        ("a..b:80", "not a valid DNS name"),
        (f"{'a' * 64}:80", "not a valid DNS name"),
        (7, "not a text"),
        (None, "not a text"),
    ],
)
def test_what_is_no_address_says_why(address, reason):
    with pytest.raises(ValueError, match=reason):
        split_address(address)


def test_ports_are_free_and_held_until_their_holder_is_gone():
    holder = LocalPorts(5)
    ports = holder.ports
    assert len(set(ports)) == 5
    for port in ports:
        with socket.create_server(("127.0.0.1", port)):  # the reservation is not in the server's way
            pass
        with (
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other,
            pytest.raises(OSError, match="in use"),
        ):
            other.bind(("127.0.0.1", port))
    del holder
    gc.collect()
    for port in ports:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
            other.bind(("127.0.0.1", port))


def test_a_port_that_a_server_listens_on_is_not_given(monkeypatch):
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        free = LocalPorts(20).ports  # of which other processes may take some
        monkeypatch.setattr("random.SystemRandom.sample", lambda *_: [port, *free])
        assert set(LocalPorts(1).ports) < set(free)


def test_runs_at_the_same_moment_never_share_a_port():
    # Eight processes ask for 200 ports each of the 17,000 there are, all holding on until all have answered.
    code = (
        "import sys; from tfdist.cluster.addresses_and_free_ports import LocalPorts; "
        "held = LocalPorts(200); print(*held.ports, flush=True); sys.stdin.read()"
    )
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(8)
    ]
    try:
        given = [port for run in runs for port in run.stdout.readline().split()]
    finally:
        for run in runs:
            run.communicate(timeout=30)
    assert [run.returncode for run in runs] == [0] * 8
    assert len(given) == len(set(given)) == 1600


def test_holding_ports_leaves_no_descriptor_behind():
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        LocalPorts(3)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before  # others may have been closed meanwhile
