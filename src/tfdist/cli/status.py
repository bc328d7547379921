"""Tell the state of a submitted job.

tfdist status slurm://cluster/123
"""

from collections.abc import Sequence

from tfdist.cli._jobs import submission_of
from tfdist.cli._run_command import run
from tfdist.engines.logs_and_exit_status import last_progress

__all__ = ["main"]


def main(command: Sequence[str]) -> None:
    """Print the state, the scheduler's own words for it, the folder of the run, and the progress."""
    engine, submission = submission_of(command)
    state, words = engine.state(submission)
    parts = [str(submission.handle), f"{state.value} ({words})", submission.place]
    print("  ".join(filter(None, [*parts, last_progress(submission)])))


if __name__ == "__main__":
    run(main, takes_words=True)
