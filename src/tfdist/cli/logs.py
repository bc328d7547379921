"""Print what the tasks of a submitted job have printed.

    tfdist logs slurm://cluster/123 --task worker:1 --follow

With --follow it continues until the job has ended.
"""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tfdist.cli._jobs import submission_of
from tfdist.engines.submissions import Submission, state_of

__all__ = ["main"]

_SECONDS_BETWEEN_READS = 0.5
_SECONDS_BETWEEN_STATES = 5.0  # a scheduler must not be asked often


def main(command: Sequence[str], task: str | None = None, follow: bool = False) -> None:
    """Print the logs of all tasks, each line after the name of its task, or of one task."""
    submission = submission_of(command)
    names = submission.tasks if task is None else (task,)
    files = {name: submission.log(name) for name in names}
    for name, line in _lines(submission, files, follow):
        sys.stdout.write(line if task is not None else f"{name}: {line}")
        sys.stdout.flush()


def _lines(submission: Submission, files: Mapping[str, Path], follow: bool) -> Iterator[tuple[str, str]]:
    """Yield each line with the name of its task: those of now, or those until the job has ended."""
    positions = dict.fromkeys(files, 0)
    asked_at, is_over = float("-inf"), not follow
    while True:
        if not is_over and time.monotonic() - asked_at > _SECONDS_BETWEEN_STATES:
            is_over, asked_at = state_of(submission)[0].is_final, time.monotonic()
        for name, path in files.items():
            if path.exists():
                lines, positions[name] = _read(path, positions[name], is_over)
                yield from ((name, line) for line in lines)
        if is_over:
            return
        time.sleep(_SECONDS_BETWEEN_READS)


def _read(path: Path, position: int, is_over: bool) -> tuple[list[str], int]:
    """Return the lines after a position, and the position after them; a line without an end only if told."""
    with path.open("rb") as file:
        file.seek(position)
        data = file.read()
    if not is_over:
        data = data[: data.rfind(b"\n") + 1]
    lines = data.decode(errors="backslashreplace").splitlines()
    return [f"{line}\n" for line in lines], position + len(data)


if __name__ == "__main__":
    from absl import flags

    from tfdist.cli._run import run

    flags.DEFINE_string("task", None, "Only this task, e.g. worker:1.")
    flags.DEFINE_bool("follow", False, "Continue until the job has ended.")
    run(main, takes_words=True)
