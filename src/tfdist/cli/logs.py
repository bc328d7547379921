"""Print what the tasks of a submitted job have printed.

    tfdist logs slurm://cluster/123 --task worker:1 --follow

With --follow it continues until the job has ended.
"""

import sys
from collections.abc import Sequence
from typing import Annotated

from tfdist._utils.check_and_expand_paths import is_folder
from tfdist.cli._flags_from_signature import Flag, run
from tfdist.cli._job_from_command_line import submission_of
from tfdist.engines.job_handle_and_state import Submission
from tfdist.engines.log_files_and_exit_status import array_folder
from tfdist.errors import ConfigError, shown
from tfdist.launcher.screen_filter import without_control_sequences


def main(
    command: Sequence[str],
    task: Annotated[str | None, Flag("Only this task, e.g. worker:1, or 3/worker:1 of an array.")] = None,
    follow: Annotated[bool, Flag("Continue until the job has ended.")] = False,
) -> None:
    """Print the logs of all tasks, each line after the name of its task, or of one task."""
    engine, submission = submission_of(command)
    tasks = submission.tasks if task is None else (_task_of(submission, task),)
    for name, printed in engine.logs(submission, tasks, follow):
        if task is not None and "/" in task and name != task:  # of another job of the array
            continue
        line = without_control_sequences(printed) if sys.stdout.isatty() else printed
        sys.stdout.write(f"{line}\n" if task is not None else f"{name}: {line}\n")
        sys.stdout.flush()


def _task_of(submission: Submission, name: str) -> str:
    """Return the task of a name, before which the index of a job of an array may be: 3/worker:0."""
    index, slash, task = name.rpartition("/")
    if task not in submission.tasks:
        raise ConfigError("--task", expected=f"one of {', '.join(submission.tasks)}", received=name)
    if slash and not is_folder(array_folder(submission, index)):
        remedy = f"Write {task}, or the index of a job that has started"
        raise ConfigError("--task", f"there is no job {shown(index)} of an array", remedy=remedy)
    return task


if __name__ == "__main__":
    run(main, takes_words=True)
