"""Read the logs of a job, each by itself: one that cannot be read leaves the lines of the others.

A failure may pass while logs are followed, so each log is read again in the next round. At the end, a log
counts as unread only if its last reading has failed.
"""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from tfdist.engines.job_handle_and_state import State, Submission
from tfdist.errors import TfdistError

Line = tuple[str, str]  # the name of a task, and what it has printed
Logs = Callable[[bool], Iterable[tuple[str, Iterable[Line]]]]

_SECONDS_BETWEEN_STATES = 5.0  # a scheduler must not be asked often
_SECONDS_OF_FAILURES = 60.0  # of the engine itself, while logs are followed


def until_end(
    state: Callable[[Submission], tuple[State, str]], submission: Submission, follow: bool
) -> Callable[[], bool] | None:
    """Return the function that `read_logs` asks whether the job has ended; None if nobody follows it."""
    return (lambda: state(submission)[0].is_final) if follow else None


def read_logs(logs: Logs, is_over: Callable[[], bool] | None, pause: float) -> Iterator[Line]:
    """Yield the lines of all logs.

    Args:
        logs: Returns the name and the new lines of each log, whenever it is called; it is told whether this
            is the last time.
        is_over: Whether the job has ended, to continue until then; None for the lines of now.
        pause: The seconds between two readings.

    Raises:
        TfdistError: A log cannot be read (the lines of all others came before), or the engine does not
            answer.
    """
    errors: dict[str, TfdistError] = {}
    yield from lines_until_end(logs, is_over, pause, errors)
    raise_first(errors)


def lines_until_end(
    logs: Logs, is_over: Callable[[], bool] | None, pause: float, errors: dict[str, TfdistError]
) -> Iterator[Line]:
    """Yield what `read_logs` does, and put the errors of logs that cannot be read into `errors`."""
    asked_at, failing_since, is_last = float("-inf"), None, is_over is None
    while True:
        try:
            if is_over and not is_last and time.monotonic() - asked_at >= _SECONDS_BETWEEN_STATES:
                is_last, asked_at = is_over(), time.monotonic()  # before the last lines are read
            for name, lines in logs(is_last):
                try:
                    yield from lines
                except TfdistError as error:
                    if is_over and name not in errors:
                        _say(_named(name, error))
                    errors[name] = error
                else:
                    errors.pop(name, None)
            failing_since = None
            if is_last:
                return
        except TfdistError as error:
            if failing_since is None:
                failing_since = time.monotonic()
                if is_over:
                    _say(error)
            if not is_over or time.monotonic() - failing_since >= _SECONDS_OF_FAILURES:
                raise
        time.sleep(pause)


def raise_first(errors: Mapping[str, TfdistError]) -> None:
    """Raise the first of the errors of logs that cannot be read, if there are any."""
    for name, error in errors.items():
        raise _named(f"{name} and {len(errors) - 1} more" if len(errors) > 1 else name, error)


def _named(name: str, error: TfdistError) -> TfdistError:
    return type(error)(f"logs of {name}", str(error))


def _say(error: TfdistError) -> None:
    print(f"tfdist: {error}", file=sys.stderr, flush=True)
