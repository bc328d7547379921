"""Make several machines of one: network namespaces, joined by a bridge, each with a host name and /etc/hosts of its own."""

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["Machines", "machines", "why_no_machines"]

CONTROLLER = "ctl"
SECONDS_TO_END = 20
_NUMBERS = itertools.count(1)  # the sites of one test process, such as Slurm's and ssh's
_RUN_THERE = 'mount --bind "$0" /etc/hosts && hostname "$1" && shift && exec "$@"'


def why_no_machines() -> str | None:
    """Return why this system cannot have network namespaces; None where it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    lacking = [name for name in ("ip", "nsenter", "unshare") if shutil.which(name) is None]
    return f"{', '.join(lacking)} not found (Debian: iproute2, util-linux)" if lacking else None


class Machines:
    """Run commands on machines `ctl`, `node1`, `node2` … .

    Attributes:
        folder: A folder that all machines share, as a site shares home directories.
        nodes: The names of all machines but the controller.
        hosts: The /etc/hosts of all machines.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.nodes = tuple(f"node{i}" for i in range(1, count + 1))
        self.hosts = folder / "hosts"
        self._prefix = f"tfd{os.getpid()}-{next(_NUMBERS)}"
        self._processes: list[subprocess.Popen[Any]] = []

    def namespace(self, machine: str) -> str:
        """Return the name of a machine's network namespace."""
        return f"{self._prefix}-{machine}"

    def start(self, machine: str, command: Sequence[str | Path], **options: Any) -> subprocess.Popen[Any]:
        """Start a command on a machine; it is ended with the machines."""
        process = subprocess.Popen(
            self._there(machine, command), start_new_session=True, stdin=subprocess.DEVNULL, **options
        )
        self._processes.append(process)
        return process

    def run(
        self,
        machine: str,
        command: Sequence[str | Path],
        *,
        timeout: float = 600,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a machine to its end; return its output and exit status."""
        return subprocess.run(
            self._there(machine, command),
            timeout=timeout,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def kill(self, machine: str) -> None:
        """Kill all processes of a machine, as a loss of power does."""
        namespace = Path("/run/netns", self.namespace(machine)).stat().st_ino
        for folder in Path("/proc").glob("[0-9]*"):
            # A process may end meanwhile; that of the container's own init may not be looked at.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
                if (folder / "ns" / "net").stat().st_ino == namespace:
                    os.kill(int(folder.name), signal.SIGKILL)

    def _there(self, machine: str, command: Sequence[str | Path]) -> list[str]:
        # `ip netns exec` would mount another /sys, in which slurmd finds no cgroups.
        enter = ["unshare", "--mount", "--uts", "nsenter", f"--net=/run/netns/{self.namespace(machine)}"]
        return [*enter, "bash", "-c", _RUN_THERE, str(self.hosts), machine, *map(str, command)]

    @contextlib.contextmanager
    def _up(self) -> Iterator[None]:
        hosts = ["127.0.0.1 localhost", f"10.77.0.254 {CONTROLLER}"]
        hosts += [f"10.77.0.{i} {node}" for i, node in enumerate(self.nodes, 1)]
        self.hosts.write_text("\n".join(hosts) + "\n")
        spaces = [self.namespace(name) for name in (CONTROLLER, *self.nodes)]
        try:
            for space in spaces:
                _ip("netns", "add", space)
                _ip("-n", space, "link", "set", "lo", "up")
            _ip("-n", spaces[0], "link", "add", "br0", "type", "bridge")
            _ip("-n", spaces[0], "addr", "add", "10.77.0.254/24", "dev", "br0")
            _ip("-n", spaces[0], "link", "set", "br0", "up")
            for i, space in enumerate(spaces[1:], 1):
                ends = ["link", "add", f"ve{i}", "netns", spaces[0], "type", "veth"]
                _ip(*ends, "peer", "name", "eth0", "netns", space)
                _ip("-n", spaces[0], "link", "set", f"ve{i}", "master", "br0", "up")
                _ip("-n", space, "addr", "add", f"10.77.0.{i}/24", "dev", "eth0")
                _ip("-n", space, "link", "set", "eth0", "up")
            yield
        finally:
            self._end_processes()
            for machine in (CONTROLLER, *self.nodes):
                with contextlib.suppress(FileNotFoundError):  # was never made
                    self.kill(machine)  # what those have started, and have not ended
                    _ip("netns", "del", self.namespace(machine))

    def _end_processes(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in self._processes:
                if process.poll() is None:
                    os.killpg(process.pid, number)
            for process in self._processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(SECONDS_TO_END)


@contextlib.contextmanager
def machines(folder: Path, count: int) -> Iterator[Machines]:
    """Make so many machines and a controller, for as long as the block lasts."""
    made = Machines(folder, count)
    with made._up():
        yield made


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
