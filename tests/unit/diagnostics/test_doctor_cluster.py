"""Check that `tfdist doctor` finds what is wrong with a cluster: each test makes it so on this machine."""

import json
import os
import socket
import subprocess
import sys
import threading

import pytest

from tfdist.cluster.addresses_and_free_ports import LocalPorts
from tfdist.cluster.config import ClusterConfig
from tfdist.coordination.background_threads import each_in_time
from tfdist.diagnostics.doctor.check_addresses_and_reachability import (
    check_access,
    check_addresses,
    reach_all,
)
from tfdist.diagnostics.doctor.find_and_describe_cluster import describe, find_cluster
from tfdist.diagnostics.doctor.look_up_and_connect import (
    is_local,
    look_up,
    own_address,
    own_addresses,
)
from tfdist.diagnostics.doctor.transport_in_use import check_transport
from tfdist.errors import ConfigError
from tfdist.trainer.config import Config, read_config

FIB_TRIE = """\
Main:
     +-- 127.0.0.0/8 2 0 2
           |-- 127.0.0.1
              /32 host LOCAL
     +-- 203.0.113.0/24 2 0 2
           |-- 203.0.113.0
              /24 link UNICAST
           |-- 203.0.113.7
              /32 host LOCAL
        |-- 203.0.113.255
           /32 link BROADCAST
"""
SECRET = {"TFDIST_SECRET": "0123456789abcdef"}
ELSEWHERE = "10.9.9.9:2222"


@pytest.fixture
def taken():
    """An address on which something listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def free():
    """An address on which nothing listens."""
    reserved = LocalPorts(1)
    yield f"127.0.0.1:{reserved.ports[0]}"
    del reserved  # until now it kept the port


def tf_config(*workers, index=0):
    """Return the cluster of a TF_CONFIG."""
    text = json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}})
    return find_cluster(None, None, {"TF_CONFIG": text})


def by_check(findings):
    return {finding.check: finding for finding in findings}


def test_a_task_on_its_own_host_is_well(free, taken):
    found = by_check([*check_addresses(tf_config(free, taken)), *reach_all(tf_config(free, taken))])

    assert {name: finding.state for name, finding in found.items()} == {
        "names": "ok",
        "own address": "ok",
        "own port": "ok",
        "access": found["access"].state,  # of the machine of these tests
        "worker:1": "ok",
    }
    assert "something listens" in found["worker:1"].found


@pytest.mark.parametrize(
    ("addresses", "environ", "state", "words"),
    [
        (
            ["127.0.0.1", "10.1.2.3", "fd00::2", "fe80::1", "100.64.0.9"],
            {},
            "ok",
            "its addresses are private",
        ),
        (["10.1.2.3", "8.8.4.4"], {}, "warning", "everybody who reaches 8.8.4.4 can run code here"),
        (["2600::1"], {"TFDIST_ONLY_PEERS": "0"}, "warning", "everybody who reaches 2600::1"),
        ([f"8.8.4.{last}" for last in range(9)], {}, "warning", "8.8.4.0, 8.8.4.1, 8.8.4.2 and others can"),
        (["8.8.4.4"], {"TFDIST_ONLY_PEERS": "1"}, "ok", "only hosts of the cluster reach the port of a task"),
    ],
)
def test_who_reaches_tensorflows_servers_is_told(addresses, environ, state, words):
    found = check_access(addresses, environ)
    assert found.state == state
    assert words in found.found
    assert ("TFDIST_ONLY_PEERS=1, or close" in found.remedy) == (state == "warning")


def test_the_addresses_of_all_interfaces_are_found(tmp_path):
    net = tmp_path / "proc" / "net"
    net.mkdir(parents=True)
    assert own_addresses(tmp_path) == tuple(filter(None, [own_address()]))  # another system than Linux
    (net / "fib_trie").write_text(FIB_TRIE)
    (net / "if_inet6").write_text("fd000000000000000000000000000002 04 40 00 82     eth0\n")
    assert set(own_addresses(tmp_path)) - {own_address()} == {"203.0.113.7", "fd00::2"}
    assert all(is_local(address) for address in own_addresses() if not address.startswith("fe80"))


def test_a_taken_port_is_a_failure(taken, free):
    found = by_check(check_addresses(tf_config(taken, free)))["own port"]

    assert (found.state, found.remedy) == ("failed", "`ss -lntp` shows which process has it")
    assert found.found == f"{taken.split(':')[1]} is taken"


def test_a_port_of_roots_is_a_failure_for_others():
    code = (
        "import os; os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "from tfdist.cluster.config import ClusterConfig\n"
        "from tfdist.diagnostics.doctor.check_addresses_and_reachability import check_addresses\n"
        "for finding in check_addresses(ClusterConfig(worker=['127.0.0.1:81']).with_task('worker')): print(finding)"
    )
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    run = subprocess.run(
        [
            "unshare",
            "--net",
            sys.executable,
            "-c",
            f"import tfdist.diagnostics.doctor.check_addresses_and_reachability, encodings.idna; {code}",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if "unshare failed" in run.stderr:
        pytest.skip(run.stderr)

    line = next(line for line in run.stdout.splitlines() if "own port" in line)
    assert line.startswith("  failed")
    assert "only root may take it" in line


def test_a_name_that_nobody_knows_is_a_failure(free):
    cluster = tf_config(free, "no-such-host.invalid:2222")
    found = by_check(check_addresses(cluster))

    assert found["names"].state == "failed"
    assert found["names"].found.startswith("no-such-host.invalid (worker:1): ")
    assert "TF_CONFIG: cluster.worker[1]" in found["names"].remedy
    assert list(reach_all(cluster)) == []  # it is reported once


def test_a_tf_config_of_another_host_is_a_failure(free):
    found = by_check(check_addresses(tf_config(ELSEWHERE, free)))["own address"]

    assert found.state == "failed"
    assert "TF_CONFIG: cluster.worker[0] is 10.9.9.9, which is no address of this host" in found.found
    assert socket.gethostname() in found.found


def test_a_loopback_address_among_other_hosts_is_a_warning(free):
    found = by_check(check_addresses(tf_config(free, ELSEWHERE)))["own address"]

    assert (found.state, "/etc/hosts" in found.remedy) == ("warning", True)


def test_a_port_on_which_nothing_listens_is_not_started_yet(free, taken):
    found = by_check(reach_all(tf_config(taken, free)))["worker:1"]

    assert found.state == "ok"
    assert found.found.endswith("nothing listens at the port yet")


def test_a_host_without_a_route_is_a_failure():
    code = (
        "from tfdist.cluster.config import ClusterConfig\n"
        "from tfdist.diagnostics.doctor.check_addresses_and_reachability import reach_all\n"
        f"for finding in reach_all(ClusterConfig(worker=['{ELSEWHERE}'])): print(finding)"
    )
    run = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if "unshare failed" in run.stderr:
        pytest.skip(run.stderr)

    assert run.stdout.startswith(
        "  failed   worker:0       10.9.9.9:2222 cannot be reached: network is unreachable. "
    )
    assert "firewalls" in run.stdout


def test_what_hangs_is_not_waited_for():
    is_over = threading.Event()
    results = each_in_time(lambda hangs: hangs and is_over.wait(), [False, True], 5.0)
    is_over.set()

    assert results == {False: False}


def test_names_and_addresses_of_this_host_are_recognized():
    assert look_up(["127.0.0.1"])["127.0.0.1"].addresses == ("127.0.0.1",)
    assert look_up(["a" * 64])["a" * 64].problem == "no name of the DNS"
    assert is_local("127.0.0.1")
    assert not is_local("10.9.9.9")
    assert not is_local("2001:db8::1")


def test_a_task_that_nobody_names_is_a_warning(free):
    cluster = find_cluster(None, None, {"TF_CONFIG": json.dumps({"cluster": {"worker": [free, ELSEWHERE]}})})

    assert describe(cluster).state == "warning"
    assert "--task worker:0" in describe(cluster).remedy
    assert describe(ClusterConfig()).found == "no cluster: this is one process"
    assert "own port" not in by_check(check_addresses(cluster))


def test_variables_that_are_wrong_raise_one_line(free):
    with pytest.raises(ConfigError, match="malformed JSON"):
        find_cluster(None, None, {"TF_CONFIG": "{"})
    with pytest.raises(ConfigError, match="there is no cluster"):
        find_cluster(None, "worker:0", {})
    assert find_cluster(
        None, "worker:0", {"TF_CONFIG": json.dumps({"cluster": {"worker": [free]}})}
    ).task == ("worker", 0)


def config(tmp_path, text="{}"):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return read_config(path).config


@pytest.mark.parametrize(
    ("text", "gpus", "environ", "states", "words"),
    [
        ("{}", 0, SECRET, "ok ok", "tfdist's own TCP connections, a ring, because the tasks compute on CPUs"),
        ("{}", 0, {}, "warning ok", "because this task has no secret"),
        ("{}", 1, {}, "ok", "because the tasks compute on GPUs"),
        ("strategy: {device: cpu}", 1, SECRET, "ok ok", "a ring"),
        ("communication: {implementation: tcp}", 0, {}, "failed", "implementation tcp needs one"),
        ("communication: {encryption: tls}", 1, SECRET, "ok ok", "a ring, encrypted by TLS, because of"),
        ("communication: {encryption: tls}", 0, {}, "failed", "encryption tls needs one"),
        (
            "communication: {implementation: tcp, dtype: bfloat16}",
            1,
            SECRET,
            "ok ok",
            "sent as bfloat16, because of comm",
        ),
        ("communication: {implementation: nccl}", 1, {}, "ok", "TensorFlow's nccl, because"),
        ("communication: {bytes_per_pack: 0}", 0, {}, "ok", "bytes_per_pack is set"),
        ("{}", 0, {"TFDIST_SECRET": "short"}, "failed", "a secret of at least 16 characters"),
        ("{}", 0, {"TFDIST_SECRET_FILE": "/proc/no/secret"}, "failed", "No such file"),
    ],
)
def test_the_transport_and_its_secret_are_told(tmp_path, text, gpus, environ, states, words):
    cluster = ClusterConfig(worker=["a:1", "b:1"], task=("worker", 0))
    findings = list(check_transport(cluster, config(tmp_path, text), gpus=gpus, environ=environ))

    assert " ".join(finding.state for finding in findings) == states
    assert words in findings[-1].found
    assert all(finding.remedy for finding in findings if finding.state != "ok")


@pytest.mark.parametrize(("environ", "secret"), [(SECRET, "ok"), ({}, "failed")])
def test_without_encryption_there_is_no_transport_and_the_secret_is_told_all_the_same(
    tmp_path, monkeypatch, environ, secret
):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    cluster = ClusterConfig(worker=["a:1", "b:1"], task=("worker", 0))
    encrypted = config(tmp_path, "communication: {encryption: tls}")
    findings = check_transport(cluster, encrypted, gpus=0, environ=environ)
    assert [(each.check, each.state) for each in findings] == [("encryption", "failed"), ("secret", secret)]


def test_the_transport_beside_a_ps_and_of_one_process_is_told():
    beside = ClusterConfig(chief=["c:1"], worker=["a:1"], ps=["b:1"])
    local = ClusterConfig.local(workers=2)

    assert (
        "from each worker to each ps"
        in list(check_transport(beside, Config(), gpus=0, environ=SECRET))[-1].found
    )
    assert "the launcher makes one" in next(check_transport(local, Config(), gpus=0, environ={})).found
    [alone] = check_transport(ClusterConfig(worker=["a:1"]), Config(), gpus=0, environ={})
    assert alone.found.startswith("none: with one_device")
