"""Run a cluster on hosts that one can log in to with ssh.

A client in the background of this machine is the launcher; each of its tasks is a connection to a host, on
which a supervisor runs the task for as long as the connection lasts.
"""

import ipaddress
import itertools
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tfdist.engines import background
from tfdist.engines.client_command import run_client
from tfdist.engines.job_description import SHELL_RUN_DIR, Job, shell_command
from tfdist.engines.job_handle_and_state import Submission
from tfdist.engines.options_into_section import OptionPath, check_roles, with_options
from tfdist.engines.ssh.check_hosts import check_hosts
from tfdist.engines.ssh.plan_file import Plan
from tfdist.errors import ConfigError, one_line, shown
from tfdist.trainer.sections.engine import SshSection

# ssh takes the first value of an option. A connection that became the master of later ones would outlive
# its task. The user's forwardings would be made for each task, and the second one of a port fails.
_OURS = ["-oBatchMode=yes", "-oControlMaster=no", "-oClearAllForwardings=yes", "-T"]
# The end of a master that the user has open would end all tasks, so only engine.ssh.options names one.
_DEFAULTS = [
    "-oControlPath=none",
    "-oConnectTimeout=15",
    "-oServerAliveInterval=15",
    "-oServerAliveCountMax=5",
]


class Ssh(background.BackgroundEngine):
    """OpenSSH's client."""

    name = "ssh"
    repeatable = ("setup",)

    def render(self, job: Job, options: Mapping[str, str]) -> str:
        """Return the script that runs the client in the foreground, with its plan."""
        return _script(job, plan_of(job, options))

    def submit(self, job: Job, options: Mapping[str, str]) -> Submission:
        """Check all hosts, and start the script in a session of its own."""
        plan = plan_of(job, options)
        if problems := check_hosts(plan).problems:
            *others, last = problems
            for problem in others:
                print(f"tfdist: {problem}", file=sys.stderr)
            raise last
        return background.submit(self.name, job, _script(job, plan))


def plan_of(job: Job, options: Mapping[str, str]) -> Plan:
    """Return the plan of a job.

    Raises:
        ConfigError: An option is wrong, or ssh refuses it.
    """
    section = _section(job, options)
    tasks = dict(_deal(job, section))
    ssh_options = [f"-o{name}={value}" for name, value in section.options.items()]
    ssh = ["ssh", *_OURS, *ssh_options, *_DEFAULTS]
    addresses = {host: _address(host, ssh) for host in dict.fromkeys(tasks.values())}
    _check_addresses(addresses)
    folder = Path(section.folder or Path.cwd())
    if not folder.is_absolute():
        expected, received = "an absolute path on the hosts", shown(section.folder)
        raise ConfigError("engine.ssh.folder", expected=expected, received=received)
    # The folder of runs is in the folder there where it is so here.
    here = job.folder.relative_to(Path.cwd()) if job.folder.is_relative_to(Path.cwd()) else job.folder
    return Plan(
        tasks=tasks,
        addresses=addresses,
        ssh=ssh,
        python=section.python or sys.executable,
        folder=str(folder),
        runs=job.address or str(folder / here),
        setup=section.setup,
        command=list(job.command),
        config_name=job.config.name if job.config else "config.yaml",
        config=job.config_text,
        alone=list(job.alone),
        restarts=section.restarts,
        grace=job.grace if section.grace is None else section.grace,
        threads=job.threads,
        is_single=job.is_single,
    )


def _script(job: Job, plan: Plan) -> str:
    client = shell_command([sys.executable, "-m", "tfdist.engines.ssh.launch", SHELL_RUN_DIR])
    return background.script(Ssh.name, job, client, text=plan.as_text())


def _section(job: Job, options: Mapping[str, str]) -> SshSection:
    """Return the section of the config with the options of the command line in it."""
    values = dict(options)
    for name, text in options.items():
        if name.rpartition(":")[2] == "hosts":
            values[name] = json.dumps([host for host in text.split(",") if host], ensure_ascii=False)
        elif name == "setup":
            values[name] = json.dumps([*job.section.ssh.setup, *text.split("\n")], ensure_ascii=False)
    section = with_options(job.section.ssh, values, _path_of, job.counts)
    for name, value in section.options.items():
        if not re.fullmatch(r"[A-Z][A-Za-z0-9]+", name) or not str(value).isprintable() or value == "":
            expected = "an option of ssh_config on one line, such as Port: 22"
            raise ConfigError("engine.ssh.options", expected=expected, received=shown(f"{name}: {value}"))
    return section


def _path_of(role: str, name: str) -> OptionPath:
    if role:
        return (name, role)
    return ("options", name) if name[:1].isupper() else name


def _deal(job: Job, section: SshSection) -> Iterator[tuple[str, str]]:
    """Yield each task's name and host: in turn, over the hosts of its role or over all."""
    hosts = section.hosts
    of_roles = hosts if isinstance(hosts, dict) else {}
    every = [host for names in of_roles.values() for host in names] if isinstance(hosts, dict) else hosts
    if not every or not all(of_roles.values()):
        remedy = "Name them: engine: {ssh: {hosts: [node1, node2]}}, or --option hosts=node1,node2"
        raise ConfigError("engine.ssh.hosts", "names no host", remedy=remedy)
    for host in every:
        if not re.fullmatch(r"[A-Za-z0-9_.@:%\[\]-]+", host) or host.startswith("-"):
            expected = "a name that ssh takes, such as user@node1"
            raise ConfigError("engine.ssh.hosts", expected=expected, received=shown(host))
    check_roles(of_roles, job.counts, "engine.ssh.hosts")
    in_turn = {role: itertools.cycle(names) for role, names in of_roles.items()}
    rest = itertools.cycle(every)
    for task in job.tasks:
        yield str(task), next(in_turn.get(task.type, rest))


def _check_addresses(addresses: Mapping[str, str]) -> None:
    """Raise ConfigError if one of several hosts has an address by which it reaches only itself."""
    for host, address in addresses.items():
        if len(addresses) > 1 and _is_loopback(address):
            problem = f"{host} is at {address}, where the other hosts do not reach it"
            raise ConfigError("engine.ssh.hosts", problem, remedy="Name it as the others know it")


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:  # a name
        return address.lower() in ("localhost", "localhost.localdomain", "ip6-localhost")


def _address(host: str, ssh: Sequence[str]) -> str:
    """Return the name of a host that ssh's configuration has for it, without connecting."""
    done = run_client([*ssh, "-G", "--", host], "ssh", "Install the OpenSSH client")
    match = re.search(r"^hostname (\S+)$", done.stdout, re.MULTILINE)
    if done.returncode or match is None:
        message = one_line(done.stderr) or f"ssh -G exited with {done.returncode}"
        raise ConfigError(f"ssh {host}", message, remedy="See engine.ssh.options and ~/.ssh/config")
    return match[1]
