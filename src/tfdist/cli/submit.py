"""Submit a config, or a script of your own, to a scheduler, and print a handle.

    tfdist submit slurm --config cifar.yaml --sbatch partition=gpu
    tfdist submit slurm --workers 4 --ps 2 -- python my_script.py

`tfdist status`, `logs` and `cancel` take the handle.
"""

import sys
from collections.abc import Sequence
from typing import Any

from tfdist._utils.check_and_expand_paths import exists
from tfdist.cli._flags_from_signature import run
from tfdist.cli._job_from_command_line import earlier_handle, requested
from tfdist.engines.job_handle_and_state import Submission
from tfdist.engines.protocol import Engine
from tfdist.engines.submitted_jobs import find_submission, record
from tfdist.errors import ConfigError, TfdistError


def main(command: Sequence[str], **flags: Any) -> None:
    """Submit a job; `requested` takes the flags."""
    engine, job, options = requested(command, **flags)
    if handle := earlier_handle(flags.get("resume") or ""):
        _check_has_ended(engine, find_submission(handle))
    is_folder = job.run and not job.address and not getattr(engine, "places_runs", False)
    has_runs_in_volume = getattr(engine, "has_runs_in_volume", lambda *_: False)
    if is_folder and not has_runs_in_volume(job, options) and not exists(run_dir := job.run_dir("")):
        if engine.name == "local":
            raise ConfigError("--resume", f"{run_dir} does not exist")
        print(f"tfdist: --resume: {run_dir} does not exist on this machine", file=sys.stderr)
    submission = engine.submit(job, options)
    try:
        print(submission.handle, flush=True)  # first: a scheduler has the job now, whatever follows
    finally:
        _record(submission)


def _check_has_ended(engine: Engine, earlier: Submission) -> None:
    """Raise ConfigError if the job whose run is to continue has not ended; warn if its engine cannot say."""
    try:
        state, words = engine.state(earlier)
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
