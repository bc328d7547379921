"""A run on several machines, started by hand on each: names that are not known yet, and hosts that vanish."""

import contextlib
import os
import sys

import pytest
from machines import machines, why_no_machines
from submitted import wait_for

from commands import SECONDS

pytestmark = [pytest.mark.engines, pytest.mark.slow]

CONFIG = """
cluster: {chief: [node1:2222], worker: [node2:2222], ps: [node3:2222]}
strategy: {name: parameter_server}
data: {name: digits, batch_size: 64}
model: {name: mnist_cnn}
train: {steps: 20, seed: 0}
"""


@contextlib.contextmanager
def three_machines(folder):
    if reason := why_no_machines():
        pytest.skip(reason)
    with machines(folder, 3) as made:
        yield made


def start(made, folder, node, task, *after, cache="cache"):
    """Start a task of the run; then, on the same machine, another command. Each machine has a disk of its own."""
    disk, mounted_at = folder / f"disk-of-{node}", folder / "disk"
    disk.mkdir()
    mounted_at.mkdir(exist_ok=True)
    command = f"mount --bind {disk} {mounted_at}; "
    command += f"{sys.executable} -m tfdist.train --config {folder}/train.yaml --task {task} --run_dir {folder}/run; status=$?; "
    with open(folder / f"{task}.log", "w") as log:
        return made.start(
            node,
            ["bash", "-c", command + "".join(f"{line}; " for line in after) + "exit $status"],
            env={**os.environ, "TFDIST_CACHE_DIR": str(mounted_at / cache), "TF_CPP_MIN_LOG_LEVEL": "2"},
            stdout=log,
            stderr=log,
        )


def test_servers_end_well_where_the_chiefs_host_vanishes_with_it(tmp_path):
    (tmp_path / "train.yaml").write_text(CONFIG)
    with three_machines(tmp_path) as made:
        names = made.hosts.read_text()
        made.hosts.write_text(names.replace("10.77.0.3 node3\n", ""))  # as if node3 came up late
        chief = start(made, tmp_path, "node1", "chief:0", "ip link set eth0 down")
        servers = [
            start(made, tmp_path, node, task) for node, task in (("node2", "worker:0"), ("node3", "ps:0"))
        ]
        wait_for(
            lambda: "its name is unknown" in (tmp_path / "chief:0.log").read_text(),
            seconds=SECONDS,
            process=chief,
        )
        made.hosts.write_text(names)
        codes = [process.wait(SECONDS) for process in (chief, *servers)]
    logs = "\n".join(path.read_text()[-2000:] for path in sorted(tmp_path.glob("*.log")))
    assert codes == [0, 0, 0], logs
    assert "ps:0 at node3:2222: its name is unknown" in logs
    assert "the chief has ended, so ps:0 ends too" in logs
    for task in ("chief:0", "worker:0"):  # each prepared the data on its own disk
        assert "digits: prepared once in" in (tmp_path / f"{task}.log").read_text()


@pytest.mark.again
def test_a_worker_without_the_chiefs_data_is_named_in_one_line(tmp_path):
    (tmp_path / "train.yaml").write_text(CONFIG)
    with three_machines(tmp_path) as made:
        tasks = [
            start(made, tmp_path, "node1", "chief:0"),
            start(made, tmp_path, "node2", "worker:0", cache="another"),
            start(made, tmp_path, "node3", "ps:0"),
        ]
        codes = [process.wait(SECONDS) for process in tasks]
    log = (tmp_path / "chief:0.log").read_text()
    assert codes == [2, 0, 0], log  # the chief has ended by itself
    [line] = [line for line in log.splitlines() if "is missing on worker:0" in line]
    cache = tmp_path / "disk"
    assert line.startswith(f"tfdist: {cache}/cache/digits-")
    assert f"is missing on worker:0 at node2:2222: it prepared {cache}/another/digits-" in line
    assert line.endswith(
        "Set TFDIST_CACHE_DIR to the same path on all machines, or to a folder that they share"
    )
    assert "Traceback" not in log
