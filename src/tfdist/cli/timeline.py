"""Record for some seconds what all tasks of a running cluster do, and write one timeline of it.

    tfdist timeline runs/ps2w-20260101-120000 --seconds 2

The file opens in https://ui.perfetto.dev. To record certain steps, use `tfdist train --profile 20:30`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from tfdist._utils.check_and_expand_paths import local_path
from tfdist.cli._flags_from_signature import Flag, run
from tfdist.cli._load_tensorflow_quietly import load_tensorflow_quietly
from tfdist.diagnostics.find_tasks_of_run import RunningTasks, check_answers, find_running_tasks
from tfdist.errors import ConfigError
from tfdist.launcher.supervisor.private_network import join_private_network

_REMEDY = (
    "Run it as the user who has started the run, or set launch.network_isolation: never, or use --profile"
)
_MOST_SECONDS = 600.0  # the profiler keeps all it has seen in memory


def main(command: Sequence[str], seconds: Annotated[float, Flag("How long to record.")] = 2.0) -> None:
    """Record the tasks, write the timeline, and print where it is."""
    if len(command) != 1:
        remedy = "Name it: tfdist timeline runs/NAME"
        raise ConfigError(
            "command line", expected="the folder of one run", received=str(len(command)), remedy=remedy
        )
    if not 0.01 <= seconds <= _MOST_SECONDS:
        raise ConfigError("--seconds", expected=f"from 0.01 to {_MOST_SECONDS:g}", received=f"{seconds:g}")
    folder = local_path(command[0], "command line")
    tasks = find_running_tasks(folder)
    if tasks.is_private:
        _join_private_network(next(iter(tasks.pids.values())))
    silent = check_answers(tasks)
    for task in silent:
        print(f"tfdist: WARNING: {task} does not answer at {tasks.addresses[task]}: the timeline lacks it")
    addresses = {task: address for task, address in tasks.addresses.items() if task not in silent}
    _record(folder, RunningTasks(addresses, tasks.is_private, tasks.pids), seconds)


def _join_private_network(pid: int) -> None:
    try:
        join_private_network(pid)
    except OSError as error:
        problem = f"cannot enter the private network of process {pid}: {error.strerror}"
        raise ConfigError("timeline", problem, remedy=_REMEDY) from None


def _record(folder: Path, tasks: RunningTasks, seconds: float) -> None:
    load_tensorflow_quietly()
    from tfdist.profiling.record_from_outside import record_from_outside
    from tfdist.profiling.timeline_file import write_timeline  # these use TensorFlow

    print(f"recording {len(tasks.addresses)} tasks for {seconds:g} s", flush=True)
    recorded = record_from_outside(tasks.addresses, folder / "timeline", seconds)
    timeline = write_timeline(folder, recorded, {"run": str(folder), "seconds": seconds})
    for task in tasks.addresses.keys() - set(timeline.tasks):
        problem = (
            "has recorded nothing, or has written it on its own machine, which does not share this folder"
        )
        print(f"tfdist: WARNING: {task} {problem}: the timeline lacks it")
    for line in timeline.lines:
        print(line)
    print(f"wrote {timeline.path}: open it in https://ui.perfetto.dev")


if __name__ == "__main__":
    run(main, takes_words=True)
