"""List the jobs that you have submitted from this machine, the newest first."""

import sys

from tfdist.cli._flags_from_signature import run
from tfdist.engines.find_engine import find_engine
from tfdist.engines.job_handle_and_state import Submission
from tfdist.engines.protocol import Engine
from tfdist.engines.submitted_jobs import record_end, submissions
from tfdist.errors import ConfigError, StorageError, TfdistError

_LONGEST_STATE = 60


def main() -> None:
    """Print a table of handles, states and folders."""
    rows = [("handle", "state", "submitted", "run")]
    known, damaged = submissions()
    states = _States()
    for submission in known:
        rows.append((str(submission.handle), states.of(submission), submission.at, submission.place))
    if not known:
        print("no jobs; tfdist submit ENGINE submits one")
        rows = []
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    for error in damaged:
        print(f"tfdist: {error}", file=sys.stderr)


class _States:
    """Ask the engines for the states of jobs, the newest first: those of ended jobs once in all."""

    def __init__(self) -> None:
        self._engines: dict[str, Engine] = {}
        self._silent: dict[tuple[str, str], TfdistError] = {}  # they are not asked again
        self._places: set[str] = set()

    def of(self, submission: Submission) -> str:
        """Return the state of a job, or why it is unknown."""
        scheduler = submission.handle[:2]
        try:
            engine = self._engine(submission.handle.engine)
            if submission.ended and not getattr(engine, "runs_again", False):
                return submission.ended
            if scheduler in self._silent:
                raise self._silent[scheduler]
            state, _ = engine.state(submission)
        except TfdistError as error:
            if not isinstance(error, ConfigError | StorageError):  # which are about this job alone
                self._silent[scheduler] = error
            text = f"unknown: {error}"
            return text if len(text) <= _LONGEST_STATE else text[: _LONGEST_STATE - 1] + "…"
        else:
            if submission.place not in self._places:  # otherwise the files there are those of a newer job
                record_end(submission, state)
            return state.value
        finally:
            self._places.add(submission.place)

    def _engine(self, name: str) -> Engine:
        if name not in self._engines:
            self._engines[name] = find_engine(name)
        return self._engines[name]


if __name__ == "__main__":
    run(main)
