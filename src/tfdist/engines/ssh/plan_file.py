"""Write down who runs where: what the client of the ssh engine, and its tasks' connections, must know."""

import os
import shlex
from pathlib import Path

import msgspec

PLAN = "TFDIST_SSH_PLAN"  # the variable with the path of the plan's file

# Exit statuses of ssh itself, and of what the shell of a host runs.
NO_CONNECTION, NO_FOLDER, NO_PYTHON, NO_SETUP = 255, 91, 92, 93
_SCRIPT = """\
cd {folder} || exit {no_folder}
{setup}
command -v {python} > /dev/null || exit {no_python}
exec {python} -m tfdist.engines.ssh.task_on_host {words}"""
_LINE_OF_SETUP = """\
eval {line} < /dev/null || {{ echo {line}: status $? >&2; exit {no_setup}; }}"""
# A login shell of bash has what sites define for users, such as module and conda.
_LOGIN_SHELL = 'command -v bash > /dev/null && exec bash -lc "$0"; exec sh -c "$0"'


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Describe a job on hosts.

    Attributes:
        tasks: The host of each task, by the task's name.
        addresses: The name or number by which the tasks of other hosts reach a host.
        ssh: The words of the ssh command before the host.
        python: The interpreter on the hosts.
        folder: The folder on the hosts in which the tasks start.
        runs: The folder of all runs on the hosts, or its address in an object store.
        setup: Lines for the shell of a host before the interpreter starts.
        command: The words of the command, as `Job.command` has them.
        config_name: The name of the config file.
        config: The text of the config file; None for a script.
        alone: The roles of tasks that are started again alone.
        restarts: How often lost tasks are started again.
        grace: The seconds that a task has to end after SIGTERM.
        threads: The number of threads of each task; None for those of the host, divided by its tasks.
        is_single: Whether it is one process without a cluster.
    """

    tasks: dict[str, str]
    addresses: dict[str, str]
    ssh: list[str]
    python: str
    folder: str
    runs: str
    command: list[str]
    restarts: int
    grace: float
    setup: list[str] = []  # msgspec copies it
    config_name: str = "config.yaml"
    config: str | None = None
    alone: list[str] = []
    threads: int | None = None
    is_single: bool = False

    def tasks_on(self, host: str) -> list[str]:
        """Return the names of the tasks of a host."""
        return [task for task, its_host in self.tasks.items() if its_host == host]

    def words_for(self, host: str, *words: str) -> list[str]:
        """Return the command that runs tfdist.engines.ssh.task_on_host with these words on a host."""
        script = _SCRIPT.format(
            folder=shlex.quote(self.folder),
            setup="\n".join(
                _LINE_OF_SETUP.format(line=shlex.quote(line), no_setup=NO_SETUP) for line in self.setup
            ),
            python=shlex.quote(self.python),
            words=shlex.join(words),
            no_folder=NO_FOLDER,
            no_python=NO_PYTHON,
        )
        # The user's own shell there may be another one.
        shell = ["sh", "-c", _LOGIN_SHELL, script] if self.setup else ["sh", "-c", script]
        return [*self.ssh, "--", host, shlex.join(shell)]

    def as_text(self) -> str:
        """Return the plan as JSON."""
        return msgspec.json.format(msgspec.json.encode(self)).decode()


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """Tell a host which task of a plan to run; it goes over the connection's standard input.

    Attributes:
        plan: The plan of the job.
        run_dir: The folder of the run on the hosts.
        task: The name of the task.
        tf_config: The task's TF_CONFIG.
        secret: The secret that the tasks share.
    """

    plan: Plan
    run_dir: str
    task: str
    tf_config: str
    secret: str


def read_plan(path: Path) -> Plan:
    """Return the plan in a file."""
    return msgspec.json.decode(path.read_bytes(), type=Plan)


def write_private(path: Path, data: bytes) -> None:
    """Write a new file that only this user may read."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
