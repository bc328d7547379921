"""Find the tasks of a run that is under way, and how to reach them, from what is in the run's folder."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tfdist._utils.run_process import is_alive
from tfdist.coordination.grpc_health_probe import answers
from tfdist.diagnostics.report.run_facts import RunFacts, read_run
from tfdist.errors import ConfigError
from tfdist.launcher.run_events import LaunchStarted, NetworkChosen, TaskExited, TaskStarted

_NO_PORT = "evaluator"  # reads checkpoints, and no task calls it


@dataclass(frozen=True)
class RunningTasks:
    """The tasks of a run that is under way.

    Attributes:
        addresses: The address of each task that has a port.
        is_private: Whether they are in a private network of their own.
        pids: The processes of those that a launcher on this machine has started.
    """

    addresses: Mapping[str, str]
    is_private: bool
    pids: Mapping[str, int]


def find_running_tasks(folder: Path) -> RunningTasks:
    """Return the tasks of the run in a folder.

    Raises:
        ConfigError: The folder is that of no run, or its run is over, or its tasks have no ports.
        DataError: A file there is damaged.
    """
    facts = read_run(folder)
    if facts.problem is not None:
        raise _over(folder, "has failed" if facts.problem else "is done")
    launched, started = facts.launched, facts.started
    pids = _pids(facts)
    if launched is not None and not any(map(is_alive, pids.values())):
        ended = "was killed, as no process of its tasks is left" if pids else "has not started its tasks yet"
        raise _over(folder, ended)
    known = (started.addresses if started is not None else {}) or (launched.tasks if launched else {})
    addresses = {task: address for task, address in known.items() if task.partition(":")[0] != _NO_PORT}
    if not addresses:
        problem, remedy = "has no tasks that are known yet", "Wait until it trains"
        if started is not None:
            problem, remedy = "is no run of a cluster, whose tasks have ports", "Train with --profile 20:30"
        raise ConfigError(str(folder), problem, remedy=remedy)
    network = facts.last(NetworkChosen)
    return RunningTasks(addresses, network is not None and network.is_private, pids)


def _over(folder: Path, how: str) -> ConfigError:
    remedy = "Name one that trains, or train with --profile 20:30"
    return ConfigError(str(folder), f"is the folder of a run that {how}", remedy=remedy)


def _pids(facts: RunFacts) -> dict[str, int]:
    """Return the processes of the tasks that the last start of the run has, by what the launcher recorded."""
    pids: dict[str, int] = {}
    for event in facts.events:
        match event:
            case LaunchStarted():
                pids.clear()
            case TaskStarted(task=task, pid=pid):
                pids[task] = pid
            case TaskExited(task=task):
                pids.pop(task, None)
    return pids


def check_answers(tasks: RunningTasks) -> list[str]:
    """Return the tasks that do not answer at their ports.

    Raises:
        ConfigError: No task answers.
    """
    silent = [task for task, address in tasks.addresses.items() if not answers(address)]
    if len(silent) == len(tasks.addresses):
        places = ", ".join(f"{task} at {address}" for task, address in tasks.addresses.items())
        remedy = "Wait until the tasks are connected; on other machines, open the ports to this one"
        raise ConfigError("timeline", f"no task answers: {places}", remedy=remedy)
    return silent
