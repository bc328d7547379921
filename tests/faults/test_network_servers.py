"""Parameter servers on two hosts, joined by a wire of 100 Mbit/s that is slow, loses packets, or is cut."""

import json
import subprocess
import sys
import time

import pytest
from hosts import begun_with
from proofs import prove_exact, prove_nothing_left
from setups import SILENCE
from wire import HOSTS, NAMES, why_no_wire

from curves import curve

pytestmark = [pytest.mark.faults, pytest.mark.skipif(bool(why := why_no_wire()), reason=why)]

NEAR, FAR = HOSTS
ELSEWHERE, STRANGER = "10.80.0.3", "10.80.0.9"
SCAN = """
import asyncio, json, sys
async def first(port, seen, places):
    async with places:
        try:
            calling = asyncio.open_connection(sys.argv[2], port, local_addr=(sys.argv[1], 0))
            reader, writer = await asyncio.wait_for(calling, 3)
        except (OSError, TimeoutError):
            return
        try:
            seen[port] = (await asyncio.wait_for(reader.read(40), 1)).decode("latin-1")
        except (OSError, TimeoutError):
            seen[port] = ""
        writer.close()
async def scan():
    seen, places = {}, asyncio.Semaphore(500)
    await asyncio.gather(*(first(port, seen, places) for port in range(1, 65536)))
    print(json.dumps(seen))
asyncio.run(scan())
"""


@pytest.fixture(scope="module")
def straight(tmp_path_factory, cache):
    """Return the chief of a synchronous run over a wire without faults."""
    with begun_with("parameter_server_sync", tmp_path_factory.mktemp("straight"), cache) as (_, tasks):
        tasks.start()
        assert set(tasks.ends().values()) == {0}, tasks.told()
    return tasks["chief:0"]


def slow_and_lossy(folder, strategy, cache):
    """Return the chief of a run over a wire that is slow and loses packets."""
    with begun_with(strategy, folder, cache) as (wire, tasks):
        wire.delay, wire.loss = 0.002, 0.1
        tasks.start()
        assert set(tasks.ends().values()) == {0}, tasks.told()
    assert wire.lost > 10
    prove_nothing_left(tasks["chief:0"])
    return tasks["chief:0"]


@pytest.mark.again
def test_a_wire_that_is_slow_and_loses_packets_makes_no_difference(straight, tmp_path, cache):
    prove_exact(slow_and_lossy(tmp_path, "parameter_server_sync", cache), 2, straight)


@pytest.mark.again
def test_over_such_a_wire_asynchronous_steps_count_once(tmp_path, cache):
    prove_exact(slow_and_lossy(tmp_path, "parameter_server", cache), 1)


def test_synchronous_tasks_that_are_cut_off_continue_to_the_same_bits(straight, tmp_path, cache):
    with begun_with("parameter_server_sync", tmp_path, cache) as (wire, tasks):
        chief = tasks["chief:0"]
        tasks.start()
        tasks.reach(40)
        wire.is_cut = True
        assert set(tasks.ends().values()) == {138}, tasks.told()
        safe = chief.newest()
        wire.is_cut = False
        tasks.start()
        assert set(tasks.ends().values()) == {0}, tasks.told()
    assert [each["at_step"] for each in chief.history()] == [0, safe]
    prove_exact(chief, 2, straight)
    prove_nothing_left(chief)


def test_without_an_asynchronous_worker_that_is_cut_off_the_others_end(tmp_path, cache):
    with begun_with("parameter_server", tmp_path, cache, is_patient=True) as (wire, tasks):
        chief = tasks["chief:0"]
        tasks.start()
        tasks.reach(20)
        wire.is_cut = True
        assert tasks.ends("worker:1") == {"worker:1": 138}, tasks.told()
        others = [name for name in tasks if name != "worker:1"]
        assert set(tasks.ends(*others).values()) == {0}, tasks.told()
    assert f"worker:1 at {FAR}:2224 silent for " in chief.said()
    assert len(chief.history()) == 1
    prove_exact(chief, 1, in_part=1)
    prove_nothing_left(chief)


@pytest.mark.again
@pytest.mark.parametrize("strategy", ["parameter_server", "parameter_server_sync"])
def test_a_port_scan_of_a_stranger_finds_only_what_asks_for_the_secret(strategy, tmp_path, cache):
    with begun_with(strategy, tmp_path, cache) as (wire, tasks):
        wire.add(1, STRANGER)
        for task in tasks.values():
            task.environ["TFDIST_ONLY_PEERS"] = "1"
        tasks.start()
        tasks.reach(40)
        of_peer, of_stranger = (open_ports(wire, caller) for caller in (FAR, STRANGER))
        assert set(tasks.ends().values()) == {0}, tasks.told()
    assert {2222, 2223, 2224} <= set(of_peer)
    assert all(port > 2224 and "tfdist exchange" in first for port, first in of_stranger.items()), of_stranger
    prove_exact(tasks["chief:0"], 1 if strategy == "parameter_server" else 2)


def open_ports(wire, caller):
    """Return the ports of the near host that a caller reaches, with what each sends first."""
    words = [*wire.inside(1), sys.executable, "-c", SCAN, caller, NEAR]
    return {
        int(port): first
        for port, first in json.loads(subprocess.check_output(words, timeout=120, text=True)).items()
    }


@pytest.mark.again
@pytest.mark.parametrize(("strategy", "replicas"), [("parameter_server", 1), ("parameter_server_sync", 2)])
def test_a_wire_that_is_slow_for_a_while_and_cut_for_a_moment_is_waited_for(
    strategy, replicas, tmp_path, cache
):
    with begun_with(strategy, tmp_path, cache, steps=600, is_patient=True) as (wire, tasks):
        tasks.start()
        tasks.reach(20)
        wire.delay = 0.3
        time.sleep(20)
        wire.delay, wire.is_cut = 0.0, True
        time.sleep(SILENCE / 3)
        wire.is_cut = False
        assert set(tasks.ends().values()) == {0}, tasks.told()
    prove_exact(tasks["chief:0"], replicas, in_part=int(replicas == 1))
    prove_nothing_left(tasks["chief:0"])


@pytest.mark.again
def test_an_asynchronous_worker_comes_back_at_another_address(tmp_path, cache):
    """Its machine goes without a word, so the connections to it stay open; its name is another machine's then."""
    by_name = {"chief": [f"{NAMES[0]}:2222"], "ps": [f"{NAMES[0]}:2223"]}
    by_name["worker"] = [f"{name}:2224" for name in NAMES]
    changes = {"steps": 8000, "cluster": by_name, "checkpoint": {"every": 500, "background": True}}
    with begun_with("parameter_server", tmp_path, cache, **changes) as (wire, tasks):
        chief, worker = tasks["chief:0"], tasks["worker:1"]
        tasks.start()
        tasks.reach(500)
        wire.is_cut = True
        worker.process.kill()
        worker.process.wait()
        wire.move(1, ELSEWHERE)
        wire.is_cut = False
        tasks.start("worker:1")
        assert set(tasks.ends().values()) == {0}, tasks.told()
    assert len(chief.history()) == 1
    prove_exact(chief, 1, in_part=1)
    # Of the last steps it has taken a part.
    assert curve(chief.run, "train", "milliseconds of a step/worker:1")[-1] > 0
