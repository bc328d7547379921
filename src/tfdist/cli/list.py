"""List the jobs that you have submitted from this machine, the newest first.

tfdist list
"""

from tfdist.engines.records import submissions
from tfdist.engines.registry import find_engine
from tfdist.errors import ConfigError

__all__ = ["main"]


def main() -> None:
    """Print a table of handles, states and folders."""
    rows = [("handle", "state", "submitted", "run")]
    for submission in submissions():
        try:
            state = find_engine(submission.handle.engine).state(submission)[0].value
        except ConfigError as error:  # the scheduler of another site, or one that is down
            state = f"unknown: {error}"
        rows.append((str(submission.handle), state, submission.at, submission.place))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


if __name__ == "__main__":
    from tfdist.cli._run_command import run

    run(main)
