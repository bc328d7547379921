"""End a submitted job; its tasks get SIGTERM, and save their work.

tfdist cancel slurm://cluster/123
"""

from collections.abc import Sequence

from tfdist.cli._flags_from_signature import run
from tfdist.cli._job_from_command_line import submission_of


def main(command: Sequence[str]) -> None:
    """End the job."""
    engine, submission = submission_of(command)
    engine.cancel(submission)
    print(f"{submission.handle} is told to end; tfdist status says when it has")


if __name__ == "__main__":
    run(main, takes_words=True)
