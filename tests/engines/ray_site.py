"""A Ray cluster of three nodes, as a site has it: a head with the job server, and two more, each on a machine of its own."""

import contextlib
import importlib.util
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import machines as several
from machines import CONTROLLER, Machines

import proc

__all__ = ["HEAD", "RaySite", "ray_site", "why_no_ray"]

HEAD = "10.77.0.1"
SECONDS_TO_START = 240
_MARK = "TFDIST_TEST_SITE"
# The options of `ray start` for the ports of a node's agents: a port, and the name of the agent's file.
_PORTS = {
    "metrics_export_port": (9101, "metrics_export_port"),
    "dashboard_agent_grpc_port": (9102, "metrics_agent_port"),
    "runtime_env_agent_port": (9103, "runtime_env_agent_port"),
    "dashboard_agent_listen_port": (9104, "dashboard_agent_listen_port"),
}
_VARIABLES = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    # On a busy machine, Ray's agents need longer than Ray waits for them.
    "RAY_raylet_start_wait_time_s": "240",
    "RAY_agent_register_timeout_ms": "240000",
    "RAY_worker_register_timeout_seconds": "240",
    "TF_CPP_MIN_LOG_LEVEL": "2",
}


def why_no_ray() -> str | None:
    """Return why Ray cannot run here; None where it can."""
    for name in ("ray", "aiohttp", "cloudpickle"):  # aiohttp: the job server of ray[default]
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:  # a folder of tests is called ray, too
            return f"{name} is not installed (pip install 'tfdist[ray]')"
    return several.why_no_machines()


class RaySite:
    """Run commands of a user of the cluster, on the machine that users log in to.

    Attributes:
        folder: A folder that all machines share.
        environ: The variables of all nodes and commands.
    """

    def __init__(self, machines: Machines) -> None:
        self.machines = machines
        self.folder = machines.folder
        # The job server starts `python`; here that of the tests.
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.environ = {**os.environ, **_VARIABLES, "PATH": path, _MARK: str(self.folder)}

    def run(self, *command: str | Path, timeout: float = 900, ends_with: int = 0, **variables: str) -> str:
        """Run a command where users log in; return its output."""
        address = {"RAY_ADDRESS": f"http://{HEAD}:8265", **variables}
        done = self.machines.run(CONTROLLER, command, timeout=timeout, env={**self.environ, **address})
        assert done.returncode == ends_with, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout + (done.stderr if ends_with else "")

    def drive(self, *command: str | Path, timeout: float = 900, ends_with: int = 0) -> str:
        """Run a driver on the head's machine; return its output."""
        env = {**self.environ, "RAY_ADDRESS": f"{HEAD}:6379"}
        done = self.machines.run("node1", command, timeout=timeout, env=env)
        assert done.returncode == ends_with, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr


@contextlib.contextmanager
def ray_site() -> Iterator[RaySite]:
    """Start a cluster of three nodes that runs for as long as the block lasts."""
    with (
        # A short path: the name of a socket may have 107 characters.
        tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder,
        several.machines(Path(folder), 3) as machines,
    ):
        site = RaySite(machines)
        try:
            _start(site)
            yield site
        finally:
            for process in proc.with_variable(_MARK, folder):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)


def _start(site: RaySite) -> None:
    for index, node in enumerate(site.machines.nodes, 1):
        where = [f"--address={HEAD}:6379"]
        if index == 1:
            where = ["--head", "--port=6379", "--dashboard-host=0.0.0.0", f"--temp-dir={site.folder}/t"]
        where += [f"--node-ip-address=10.77.0.{index}", "--num-cpus=2", "--object-store-memory=80000000"]
        where += [f"--{name.replace('_', '-')}={port}" for name, (port, _) in _PORTS.items()]
        node_id = f"{index:056x}"
        with open(site.folder / "ray.log", "a") as log:
            site.machines.start(
                node,
                [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *where],
                env={**site.environ, "RAY_OVERRIDE_NODE_ID_FOR_TESTING": node_id},
                stdout=log,
                stderr=log,
            )
        _write_ports(site, node_id)
        _wait_for(site, lambda count=index: _nodes(site) == count)
    _wait_for(site, lambda: _job_server_answers(site))


def _write_ports(site: RaySite, node_id: str) -> None:
    """Write the files in which a node's agents name their ports, for which Ray waits for 15 s only."""
    sockets = site.folder / "t" / "session_latest" / "sockets"
    _wait_for(site, sockets.exists)
    for port, file in _PORTS.values():
        (sockets.parent / f"{file}_{node_id}").write_text(str(port))


def _job_server_answers(site: RaySite) -> bool:
    probe = f"import urllib.request; urllib.request.urlopen('http://{HEAD}:8265/api/version', timeout=5)"
    return site.machines.run(CONTROLLER, [sys.executable, "-c", probe], env=site.environ).returncode == 0


def _nodes(site: RaySite) -> int:
    probe = (
        f"from ray._raylet import GcsClient; print(len(GcsClient(address='{HEAD}:6379').get_all_node_info()))"
    )
    done = site.machines.run("node1", [sys.executable, "-c", probe], env=site.environ)
    return int(done.stdout.strip() or 0)


def _wait_for(site: RaySite, is_up: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS_TO_START
    while not is_up():
        if time.monotonic() > deadline:
            raise TimeoutError(f"Ray has not come up: {(site.folder / 'ray.log').read_text()[-3000:]}")
        time.sleep(0.2)
