"""Submit a config, or a script of your own, to a scheduler, and print a handle.

    tfdist submit slurm --config cifar.yaml --sbatch partition=gpu
    tfdist submit slurm --workers 4 --ps 2 -- python my_script.py

`tfdist status`, `logs` and `cancel` take the handle.
"""

import os
import sys
from collections.abc import Sequence
from typing import Any

from tfdist._utils.check_and_expand_paths import exists
from tfdist.cli._flags_from_signature import run
from tfdist.cli._job_from_command_line import requested
from tfdist.engines.find_engine import find_engine
from tfdist.engines.job_description import Job
from tfdist.engines.job_handle_and_state import Submission
from tfdist.engines.protocol import Engine
from tfdist.engines.submitted_jobs import record, submissions
from tfdist.errors import ConfigError, TfdistError


def main(command: Sequence[str], **flags: Any) -> None:
    """Submit a job; `requested` takes the flags."""
    engine, job, options = requested(command, **flags)
    if job.run:
        has_runs_in_volume = getattr(engine, "has_runs_in_volume", lambda *_: False)
        places_run = getattr(engine, "places_runs", False) or has_runs_in_volume(job, options)
        _check_run(engine, job, "" if places_run else job.address or str(job.folder))
    submission = engine.submit(job, options)
    try:
        print(submission.handle, flush=True)  # first: a scheduler has the job now, whatever follows
    finally:
        _record(submission)


def _check_run(engine: Engine, job: Job, runs: str) -> None:
    """Check that the run that a job continues exists, and that no other job writes to it.

    Args:
        engine: The engine of the job.
        job: The job.
        runs: The folder or the address of all runs; nothing if the engine itself places them.

    Raises:
        ConfigError: The run does not exist on this machine, where it must, or a job of it has not ended.
    """
    if runs == str(job.folder) and not exists(run_dir := job.run_dir("")):
        if engine.name == "local":
            raise ConfigError("--resume", f"{run_dir} does not exist")
        print(f"tfdist: --resume: {run_dir} does not exist on this machine", file=sys.stderr)
    for earlier in submissions()[0]:
        place, _, name = earlier.place.rpartition("/")
        if name == job.run and (not runs or os.path.realpath(place) == os.path.realpath(runs)):
            _check_has_ended(earlier)


def _check_has_ended(earlier: Submission) -> None:
    """Raise ConfigError if a job of the run has not ended; warn if its engine cannot say."""
    try:
        state, words = find_engine(earlier.handle.engine).state(earlier)
    except TfdistError as error:  # the engine may have lost it
        print(f"tfdist: --resume: whether {earlier.handle} has ended is unknown: {error}", file=sys.stderr)
        return
    if not state.is_final:
        remedy = f"Wait for its end, or type `tfdist cancel {earlier.handle}`"
        raise ConfigError("--resume", f"{earlier.handle} is {state.value} ({words})", remedy=remedy)


def _record(submission: Submission) -> None:
    """Write the record of a job; warn if that fails, because the job runs all the same."""
    try:
        record(submission)
    except TfdistError as error:
        problem = f"was submitted, but `tfdist status`, `logs` and `cancel` do not find it: {error}"
        print(f"tfdist: {submission.handle}: {problem}", file=sys.stderr)


if __name__ == "__main__":
    run(main, flags_from=requested, takes_words=True)
