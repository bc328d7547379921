"""List the jobs that you have submitted from this machine, the newest first."""

import sys

from tfdist.cli._flags_from_signature import run
from tfdist.engines.find_engine import find_engine
from tfdist.engines.job_handle_and_state import Submission
from tfdist.engines.submitted_jobs import submissions
from tfdist.errors import ConfigError, StorageError, TfdistError

_LONGEST_STATE = 60


def main() -> None:
    """Print a table of handles, states and folders."""
    rows = [("handle", "state", "submitted", "run")]
    known, damaged = submissions()
    silent: dict[tuple[str, str], TfdistError] = {}
    for submission in known:
        rows.append((str(submission.handle), _state(submission, silent), submission.at, submission.place))
    if not known:
        print("no jobs; tfdist submit ENGINE submits one")
        rows = []
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    for error in damaged:
        print(f"tfdist: {error}", file=sys.stderr)


def _state(submission: Submission, silent: dict[tuple[str, str], TfdistError]) -> str:
    """Return the state of a job, or why it is unknown.

    Args:
        submission: The job.
        silent: The schedulers that have not answered, which are not asked again.
    """
    place = submission.handle[:2]
    try:
        if place in silent:
            raise silent[place]
        return find_engine(submission.handle.engine).state(submission)[0].value
    except TfdistError as error:
        if not isinstance(error, ConfigError | StorageError):  # which are about this job alone
            silent[place] = error
        text = f"unknown: {error}"
        return text if len(text) <= _LONGEST_STATE else text[: _LONGEST_STATE - 1] + "…"


if __name__ == "__main__":
    run(main)
