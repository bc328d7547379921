"""Tell the state of a submitted job.

tfdist status slurm://cluster/123
"""

from collections.abc import Sequence

from tfdist.cli._jobs import submission_of

__all__ = ["main"]


def main(command: Sequence[str]) -> None:
    """Print the state, the scheduler's own words for it, and the folder of the run."""
    engine, submission = submission_of(command)
    state, words = engine.state(submission)
    print(f"{submission.handle}  {state.value} ({words})  {submission.run_dir}")


if __name__ == "__main__":
    from tfdist.cli._run import run

    run(main, takes_words=True)
