"""Submit a config, or a script of your own, to a scheduler, and print a handle.

    tfdist submit slurm --config cifar.yaml --sbatch partition=gpu
    tfdist submit slurm --workers 4 --ps 2 -- python my_script.py

`tfdist status`, `logs` and `cancel` take the handle.
"""

import sys
from collections.abc import Sequence
from typing import Any

from tfdist.cli._flags_from_signature import run
from tfdist.cli._job_from_command_line import requested
from tfdist.engines.job_handle_and_state import Submission
from tfdist.engines.submitted_jobs import record
from tfdist.errors import TfdistError


def main(command: Sequence[str], **flags: Any) -> None:
    """Submit a job; `requested` takes the flags."""
    engine, job, options = requested(command, **flags)
    submission = engine.submit(job, options)
    try:
        print(submission.handle, flush=True)  # first: a scheduler has the job now, whatever follows
    finally:
        _record(submission)


def _record(submission: Submission) -> None:
    """Write the record of a job; warn if that fails, because the job runs all the same."""
    try:
        record(submission)
    except TfdistError as error:
        problem = f"was submitted, but `tfdist status`, `logs` and `cancel` do not find it: {error}"
        print(f"tfdist: {submission.handle}: {problem}", file=sys.stderr)


if __name__ == "__main__":
    run(main, flags_from=requested, takes_words=True)
