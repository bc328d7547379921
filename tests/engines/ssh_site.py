"""Three machines with an sshd each, and a controller from which a user logs in to them with a key."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import machines as several
from machines import CONTROLLER, Machines

import proc
import tfdist

__all__ = ["SshSite", "ssh_site", "why_no_ssh"]

SECONDS_TO_START = 300
SSHD = "/usr/sbin/sshd"
_CONFIG = """\
Port 2022
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
PidFile none
StrictModes no
PasswordAuthentication no
UsePAM no
MaxStartups 100
"""


def why_no_ssh() -> str | None:
    """Return why sshd cannot run here; None where it can."""
    if shutil.which("ssh") is None or not Path(SSHD).exists():
        return "ssh or sshd not found (Debian: openssh-client, openssh-server)"
    return several.why_no_machines()


class SshSite:
    """Run commands of a user of the machines on the controller.

    Attributes:
        machines: The machines.
        options: The options of `tfdist submit ssh` with which its tasks run here.
    """

    def __init__(self, machines: Machines) -> None:
        self.machines = machines
        self.folder = machines.folder
        source = Path(tfdist.__file__).parents[1]
        # No variable of this process reaches a host.
        setup = (
            f"export SSH_SITE={self.folder} PYTHONPATH={source} TF_CPP_MIN_LOG_LEVEL=2 CUDA_VISIBLE_DEVICES="
        )
        if cache := os.environ.get("TFDIST_CACHE_DIR"):
            setup += f" TFDIST_CACHE_DIR={cache}"
        self.options = {
            "Port": "2022",
            "IdentityFile": f"{self.folder}/key",
            "UserKnownHostsFile": f"{self.folder}/known_hosts",
            "GlobalKnownHostsFile": "/dev/null",
            "python": sys.executable,
            "setup": setup,
        }
        self.environ = {**os.environ, "PYTHONPATH": str(source), "SSH_SITE": str(self.folder)}

    def run(
        self, *command: str | Path, timeout: float = 120, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the controller."""
        return self.machines.run(CONTROLLER, command, timeout=timeout, env={**self.environ, **variables})


@contextlib.contextmanager
def ssh_site() -> Iterator[SshSite]:
    """Start the machines, which run for as long as the block lasts."""
    with (
        tempfile.TemporaryDirectory(prefix="ssh", ignore_cleanup_errors=True) as folder,
        several.machines(Path(folder), 3) as machines,
    ):
        site = SshSite(machines)
        try:
            _start(site)
            yield site
        finally:
            _end_jobs(site)


def _end_jobs(site: SshSite) -> None:
    """Kill the processes of jobs that a failed test left on this machine and on the hosts."""
    for process in proc.with_variable("SSH_SITE", str(site.folder)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


def _start(site: SshSite) -> None:
    folder, machines = site.folder, site.machines
    Path("/run/sshd").mkdir(exist_ok=True)
    for name in ("host_key", "key"):
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name]
        subprocess.run(words, check=True, capture_output=True)
    public = (folder / "host_key.pub").read_text()
    known = "".join(f"[{node}]:2022 {public}" for node in machines.nodes)
    (folder / "known_hosts").write_text(known)
    (folder / "sshd_config").write_text(_CONFIG.format(folder=folder))
    with open(folder / "sshd.log", "w") as log:
        for node in machines.nodes:
            machines.start(node, [SSHD, "-D", "-e", "-f", folder / "sshd_config"], stdout=log, stderr=log)
    deadline = time.monotonic() + SECONDS_TO_START
    for node in machines.nodes:
        words = [f"-o{name}={value}" for name, value in site.options.items() if name[0].isupper()]
        while (done := site.run("ssh", "-oBatchMode=yes", *words, node, "true")).returncode:
            assert time.monotonic() < deadline, f"{done.stderr}\n{(folder / 'sshd.log').read_text()}"
            time.sleep(0.2)
