"""Run the tasks of a cluster in network namespaces of their own, joined by links of a known speed."""

import contextlib
import json
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "engines"))

from machines import CONTROLLER, Machines, machines, why_no_machines

from tfdist.cluster.config import ClusterConfig, Task
from tfdist.launcher.environment import SECRET, inherited_variables, task_environment
from tfdist.launcher.share_cores_and_gpus import Cores, own_cores

__all__ = ["LINKS", "Network", "TaskError", "network", "why_no_network"]

LINKS = {"100mbit": 100e6, "1gbit": 1e9, "10gbit": 1e10, "unlimited": float("inf")}  # bits a second
_BURST = ("burst", "512kb", "latency", "100ms")
_PORT = 2222
_SECONDS = 1800.0
_LINES = 30


class TaskError(Exception):
    """Report a task that did not run to its end."""


def why_no_network() -> str | None:
    """Return why this system cannot have such links; None where it can."""
    reason: str | None = why_no_machines()
    if reason:
        return reason
    lacking = [name for name in ("tc", "taskset") if shutil.which(name) is None]
    return f"{', '.join(lacking)} not found (Debian: iproute2, util-linux)" if lacking else None


class Network:
    """Run tasks, each on a machine of its own."""

    def __init__(self, made: Machines) -> None:
        self._made = made
        self._hosts = [f"10.77.0.{number}" for number in range(1, len(made.nodes) + 1)]

    def limit(self, link: str) -> None:
        """Limit both ends of each link."""
        bridge = self._made.namespace(CONTROLLER)
        ends = [(self._made.namespace(node), "eth0") for node in self._made.nodes]
        ends += [(bridge, f"ve{number}") for number in range(1, len(self._made.nodes) + 1)]
        for space, device in ends:
            # There is none at first.
            words = ["tc", "-n", space, "qdisc", "del", "dev", device, "root"]
            subprocess.run(words, check=False, capture_output=True)
            if link != "unlimited":
                words = [
                    "tc",
                    "-n",
                    space,
                    "qdisc",
                    "add",
                    "dev",
                    device,
                    "root",
                    "tbf",
                    "rate",
                    link,
                    *_BURST,
                ]
                subprocess.run(words, check=True, capture_output=True, text=True)

    def cluster(self, **counts: int) -> ClusterConfig:
        """Return the addresses of a cluster, with a machine for each task: workers first."""
        free = iter(self._hosts)
        addresses = {role: [f"{next(free)}:{_PORT}" for _ in range(count)] for role, count in counts.items()}
        return ClusterConfig.from_tf_config(json.dumps({"cluster": addresses}))

    def run(
        self, cluster: ClusterConfig, command: Sequence[str], folder: Path, more: Mapping[str, str]
    ) -> dict[str, list[dict[str, float]]]:
        """Run a command as each task of a cluster, until one of them has written its results; return these.

        Raises:
            TaskError: A task did not end with 0.
        """
        hosts = [
            address.rpartition(":")[0] for task in cluster.tasks() for address in [cluster.address(task)]
        ]
        wanted = {
            **more,
            SECRET: secrets.token_hex(32),
            "CUDA_VISIBLE_DEVICES": "-1",
            "GLOO_SOCKET_IFNAME": "eth0",
            "no_grpc_proxy": inherited_variables(self._hosts)["no_grpc_proxy"],
        }
        cores, processes = own_cores(), {}
        for task, host in zip(cluster.tasks(), hosts, strict=True):
            env = task_environment(cluster, task, Cores(1), {}, wanted, is_width_forced=True)
            pin = ["taskset", "-c", str(cores[task.index % len(cores)])] if task.type == "worker" else []
            node = self._made.nodes[self._hosts.index(host)]
            with (folder / f"{task}.log").open("w") as out:
                processes[task] = self._made.start(node, [*pin, *command], stdout=out, stderr=out, env=env)
        try:
            self._wait(processes, folder)
            return cast("dict[str, list[dict[str, float]]]", json.loads((folder / "found.json").read_text()))
        finally:
            for host in hosts:
                self._made.kill(self._made.nodes[self._hosts.index(host)])
            for process in processes.values():
                process.wait()

    def _wait(self, processes: Mapping[Task, "subprocess.Popen[bytes]"], folder: Path) -> None:
        """Wait until the results are there."""
        end = time.monotonic() + _SECONDS
        while not (folder / "found.json").exists():
            for task, process in processes.items():
                if process.poll():
                    tail = (folder / f"{task}.log").read_text().splitlines()[-_LINES:]
                    raise TaskError("\n".join([f"{task} ended with {process.returncode}:", *tail]))
            if time.monotonic() > end:
                raise TaskError(f"no result after {_SECONDS:.0f} s")
            time.sleep(0.2)


@contextlib.contextmanager
def network(folder: Path, count: int) -> Iterator[Network]:
    """Make so many machines and their links, for as long as the block lasts."""
    with machines(folder, count) as made:
        yield Network(made)
