"""A Slurm cluster of three nodes, as a site has it: slurmctld and three slurmds, each on a machine of its own."""

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import machines as several
from machines import CONTROLLER, Machines

__all__ = ["Slurm", "slurm_site", "why_no_slurm"]

SECONDS_TO_START = 300
_CONFIG = """\
ClusterName=tfdist
SlurmctldHost={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=10
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
SlurmdTimeout=15
KillWait=30
SchedulerParameters=sched_interval=2,bf_interval=2
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName={nodes} CPUs=4 RealMemory=4000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PreemptMode=OFF
PartitionName=low Nodes=ALL PriorityTier=1 GraceTime=60 MaxTime=INFINITE State=UP
PartitionName=high Nodes=ALL PriorityTier=2 MaxTime=INFINITE State=UP PreemptMode=OFF
"""


def why_no_slurm() -> str | None:
    """Return why Slurm cannot run here; None where it can."""
    lacking = [name for name in ("slurmctld", "slurmd", "munged") if shutil.which(name) is None]
    if lacking:
        return f"{', '.join(lacking)} not found (Debian: slurm-wlm, munge)"
    return several.why_no_machines()


class Slurm:
    """Run commands of a user of the cluster, on the machine that users log in to."""

    def __init__(self, machines: Machines) -> None:
        self.machines = machines
        self.folder = machines.folder
        self.environ = {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def start_node(self, node: str) -> None:
        """Start the slurmd of a node."""
        with open(self.folder / f"{node}.log", "a") as log:
            self.machines.start(node, ["slurmd", "-D"], env=self.environ, stdout=log, stderr=log)

    def start_node_again(self, node: str) -> None:
        """Start the slurmd of a node that was killed, as a machine's own init does: as no child of this process."""
        log = str(self.folder / f"{node}.log")
        assert self.machines.run(node, ["slurmd", "-L", log], env=self.environ).returncode == 0

    def run(self, *command: str | Path, timeout: float = 600, **variables: str) -> str:
        """Run a command such as srun; return its standard output."""
        done = self.machines.run(CONTROLLER, command, timeout=timeout, env={**self.environ, **variables})
        assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout


@contextlib.contextmanager
def slurm_site(variables: Mapping[str, str] | None = None) -> Iterator[Slurm]:
    """Start a cluster of three nodes that runs for as long as the block lasts."""
    with (
        # A short path: the socket's name may have 107 characters.
        tempfile.TemporaryDirectory(prefix="slurm", ignore_cleanup_errors=True) as folder,
        several.machines(Path(folder), 3) as machines,
    ):
        site = Slurm(machines)
        site.environ.update(variables or {})
        _start(site)
        yield site


def _start(site: Slurm) -> None:
    folder, machines = site.folder, site.machines
    folder.chmod(0o755)
    names = {"controller": CONTROLLER, "folder": folder, "nodes": ",".join(machines.nodes)}
    (folder / "slurm.conf").write_text(_CONFIG.format(**names))
    (folder / "state").mkdir()
    munge = folder / "munge"
    munge.mkdir(mode=0o755)
    (munge / "key").write_bytes(os.urandom(128))
    (munge / "key").chmod(0o400)
    files = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    options = [f"--{option}={munge / file}" for option, file in files.items()]
    machines.start(CONTROLLER, ["munged", "--force", "--foreground", *options])
    with open(folder / "daemons.log", "w") as log:
        daemon = {"env": site.environ, "stdout": log, "stderr": log}
        machines.start(CONTROLLER, ["slurmctld", "-D"], **daemon)
    for node in machines.nodes:
        (folder / f"spool.{node}").mkdir()
        site.start_node(node)
    deadline = time.monotonic() + SECONDS_TO_START
    while True:
        done = machines.run(CONTROLLER, ["sinfo", "--noheader", "--format=%T %D"], env=site.environ)
        if done.stdout.split() == ["idle", str(len(machines.nodes))]:
            return
        if time.monotonic() > deadline:
            logs = "\n".join(path.read_text()[-2000:] for path in sorted(folder.glob("*.log")))
            raise TimeoutError(f"Slurm has not come up: {done.stdout}{done.stderr}\n{logs}")
        time.sleep(0.2)
