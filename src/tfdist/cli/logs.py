"""Print what the tasks of a submitted job have printed.

    tfdist logs slurm://cluster/123 --task worker:1 --follow

With --follow it continues until the job has ended.
"""

import sys
from collections.abc import Sequence

from tfdist.cli._jobs import submission_of
from tfdist.errors import ConfigError
from tfdist.launcher.console import without_control_sequences

__all__ = ["main"]


def main(command: Sequence[str], task: str | None = None, follow: bool = False) -> None:
    """Print the logs of all tasks, each line after the name of its task, or of one task."""
    engine, submission = submission_of(command)
    tasks = submission.tasks if task is None else (task,)
    if task is not None and task not in submission.tasks:
        raise ConfigError("--task", expected=f"one of {', '.join(submission.tasks)}", received=task)
    for name, printed in engine.logs(submission, tasks, follow):
        line = without_control_sequences(printed) if sys.stdout.isatty() else printed
        sys.stdout.write(f"{line}\n" if task is not None else f"{name}: {line}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    from absl import flags

    from tfdist.cli._run_command import run

    flags.DEFINE_string("task", None, "Only this task, e.g. worker:1.")
    flags.DEFINE_bool("follow", False, "Continue until the job has ended.")
    run(main, takes_words=True)
