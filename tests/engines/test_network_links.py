"""The links of benchmarks/networks.py: as fast as they say, and their bytes counted."""

import sys
import time
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from network_tasks import LINKS, TaskError, network, why_no_network  # noqa: E402

pytestmark = pytest.mark.engines
MB = 10
SECONDS = 120  # after which no transfer is fast enough

SEND = f"""
import json, os, pathlib, socket, sys, time
sys.path.insert(0, {str(BENCHMARKS / "peers")!r})
from network_traffic import Moment, note_task, tell

config, folder = json.loads(os.environ["TF_CONFIG"]), pathlib.Path(sys.argv[1])
hosts, rank = [address.partition(":") for address in config["cluster"]["worker"]], config["task"]["index"]
note_task(folder, f"worker-{{rank}}")
data = b"x" * 1_000_000
if rank == 0:
    server = socket.create_server(("", int(hosts[0][2])))
    connection, _ = server.accept()
    begun = Moment.now(folder)
    connection.sendall(b"x")
    for _ in range({MB}):
        connection.recv(len(data), socket.MSG_WAITALL)
    tell(folder, windows=[Moment.now(folder).since(begun, 1)])
else:
    while True:
        try:
            connection = socket.create_connection((hosts[0][0], int(hosts[0][2])))
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
    connection.recv(1)
    connection.sendall({MB} * data)
time.sleep(60)
"""


@pytest.fixture(scope="module")
def links(tmp_path_factory):
    """Return two machines, joined by links that can be limited."""
    if reason := why_no_network():
        pytest.skip(reason)
    with network(tmp_path_factory.mktemp("machines"), 2) as made:
        yield made


def faster_than(seconds, links, folder):
    """Return the first transfer that takes less than some seconds: others may use the processors meanwhile."""
    give_up, number = time.monotonic() + SECONDS, 0
    while True:
        (own := folder / str(number)).mkdir()
        command = [sys.executable, "-c", SEND, str(own)]
        [window] = links.run(links.cluster(worker=2), command, own, {})["windows"]
        if window["wall"] < seconds:
            return window
        assert time.monotonic() < give_up, window
        number += 1


@pytest.mark.parametrize("link", ["100mbit", "1gbit"])
def test_a_link_is_as_fast_as_it_says(links, link, tmp_path):
    links.limit(link)
    least = 8 * MB * 1e6 / LINKS[link]
    burst = 2 * 8 * 512_000 / LINKS[link]  # that the two ends of a way let through at once
    window = faster_than(2 * least + 0.1, links, tmp_path)
    assert 1.0 <= window["bytes"] / (MB * 1e6) < 1.1  # with the headers of packets
    assert window["wall"] >= least - burst


def test_a_limit_can_be_taken_off(links, tmp_path):
    links.limit("100mbit")
    links.limit("unlimited")
    assert faster_than(0.5 * 8 * MB * 1e6 / LINKS["100mbit"], links, tmp_path)


def test_a_task_that_fails_is_named_with_the_end_of_its_log(links, tmp_path):
    words = [sys.executable, "-c", "import sys; sys.exit('no such model')"]
    with pytest.raises(TaskError, match=r"worker:\d ended with 1:\nno such model"):
        links.run(links.cluster(worker=2), words, tmp_path, {})
