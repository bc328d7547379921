"""Tell the state of a submitted job.

tfdist status slurm://cluster/123
"""

from collections.abc import Sequence

from tfdist.cli._flags_from_signature import run
from tfdist.cli._job_from_command_line import submission_of
from tfdist.engines.job_handle_and_state import State, Submission
from tfdist.engines.log_files_and_exit_status import last_progress
from tfdist.engines.protocol import Engine
from tfdist.engines.submitted_jobs import record_end
from tfdist.errors import TfdistError
from tfdist.launcher.progress_text import find_progress


def main(command: Sequence[str]) -> None:
    """Print the state, the scheduler's own words for it, the folder of the run, and the progress."""
    engine, submission = submission_of(command)
    state, words = engine.state(submission)
    if submission.ended and state is not State.UNKNOWN:  # somebody may have started it again
        record_end(submission, state)
    progress = last_progress(submission)
    if progress is None and state is State.RUNNING:
        progress = _printed_progress(engine, submission)
    parts = [str(submission.handle), f"{state.value} ({words})", submission.place, progress]
    print("  ".join(filter(None, parts)))


def _printed_progress(engine: Engine, submission: Submission) -> str | None:
    """Return the last progress that the first task has printed; None if it has none, or is not heard."""
    last_lines = getattr(engine, "last_lines", None)  # an engine without it has a file of the progress
    if last_lines is None:
        return None
    leads = [task for task in ("chief:0", "worker:0") if task in submission.tasks]
    try:
        lines = last_lines(submission, (leads or submission.tasks)[0])
    except TfdistError:  # the state is known all the same
        return None
    return next(filter(None, map(find_progress, reversed(lines))), None)


if __name__ == "__main__":
    run(main, takes_words=True)
