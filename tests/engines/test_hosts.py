"""A run on several machines, started by hand on each: names that are not known yet, and hosts that vanish."""

import contextlib
import os
import sys
import time

import pytest
from machines import machines, why_no_machines

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


def start(made, folder, node, task, *after):
    """Start a task of the run; then, on the same machine, another command."""
    command = f"{sys.executable} -m tfdist.train --config {folder}/train.yaml --task {task} --run_dir {folder}/run; status=$?; "
    with open(folder / f"{task}.log", "w") as log:
        return made.start(
            node,
            ["bash", "-c", command + "".join(f"{line}; " for line in after) + "exit $status"],
            env={**os.environ, "TFDIST_CACHE_DIR": str(folder / "cache"), "TF_CPP_MIN_LOG_LEVEL": "2"},
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
        _wait_for(lambda: "its name is unknown" in (tmp_path / "chief:0.log").read_text(), chief)
        made.hosts.write_text(names)
        codes = [process.wait(SECONDS) for process in (chief, *servers)]
    logs = "\n".join(path.read_text()[-2000:] for path in sorted(tmp_path.glob("*.log")))
    assert codes == [0, 0, 0], logs
    assert "waiting for ps:0 at node3:2222: its name is unknown" in logs
    assert "the chief has ended, so ps:0 ends too" in logs


def _wait_for(condition, process):
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert process.poll() is None, "it has ended"
        assert time.monotonic() < deadline
        time.sleep(0.1)
