"""Run `tfdist doctor` on two hosts, network namespaces of this machine, with the wire between them whole and cut."""

import json
import os
import subprocess
import sys

import pytest
from wire import HOSTS, Wire, why_no_wire

pytestmark = [pytest.mark.faults, pytest.mark.skipif(bool(why := why_no_wire()), reason=why)]

PORT = 23_456
CLUSTER = {"worker": [f"{host}:{PORT}" for host in HOSTS]}


def start(wire, index, *words, side=None, **variables):
    """Start the command as one of the tasks, on its host."""
    task = {"type": "worker", "index": index}
    environ = {**os.environ, "TF_CONFIG": json.dumps({"cluster": CLUSTER, "task": task}), **variables}
    command = [
        *wire.inside(index if side is None else side),
        sys.executable,
        "-m",
        "tfdist",
        "doctor",
        "--json",
        *words,
    ]
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process):
    """Return its exit status, and what it found about the cluster, by check."""
    output, errors = process.communicate(timeout=800)
    assert "Traceback" not in errors, errors
    findings = [finding for finding in json.loads(output) if finding["group"] == "Cluster"]
    return process.returncode, {finding["check"]: finding for finding in findings}


def test_two_hosts_meet():
    secret = {"TFDIST_SECRET": "0123456789abcdef"}
    with Wire() as wire:
        wire.delay = 0.02
        processes = [start(wire, index, "--wait=120", **secret) for index in (0, 1)]
        for index, (status, found) in enumerate(map(ended, processes)):
            other = found[f"worker:{1 - index}"]
            assert status == 0
            assert {finding["state"] for finding in found.values()} == {"ok"}
            assert 40 <= float(other["found"].partition("round trip ")[2].split()[0]) < 1000
            assert {"own address", "own port", "versions", "clocks", "other ports"} <= found.keys()


def test_a_cut_wire_is_a_failure_on_both_sides():
    with Wire() as wire:
        wire.is_cut = True
        processes = [start(wire, index, "--wait=5") for index in (0, 1)]
        for index, (status, found) in enumerate(map(ended, processes)):
            other = found[f"worker:{1 - index}"]
            assert (status, other["state"]) == (2, "failed")
            assert "cannot be reached: timed out" in other["found"]
            assert "firewalls" in other["remedy"]
            assert found["secret"]["state"] == "warning"


def test_a_task_on_the_wrong_host_is_a_failure():
    with Wire() as wire:
        status, found = ended(start(wire, 0, "--wait=0", side=1))

    assert (status, found["own address"]["state"]) == (2, "failed")
    assert f"is {HOSTS[0]}, which is no address of this host" in found["own address"]["found"]
