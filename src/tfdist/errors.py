"""Define the errors of tfdist: one line with the place, what is wrong, and the remedy.

The exceptions, and the exit status of the command line for each:

    TfdistError                           1
    ├── ConfigError  (ValueError)         2  a setting, a file, a variable or a flag of the user's is wrong
    ├── DataError    (ValueError)         2  the data are missing or malformed
    │   └── Unavailable                   2  the data are not on this machine, and their download fails
    ├── StorageError (OSError)            2  tfdist cannot read or write a folder: permissions, a full disk
    ├── TaskLost     (RuntimeError)     138  a task of the cluster has ended or is silent: start this again
    ├── Preempted    (RuntimeError)     138  this task received SIGTERM: start it again
    └── NotFinite    (ArithmeticError)    1  the loss or a variable is NaN or infinite

Each is a subclass of the builtin exception in brackets, so that callers can catch it without tfdist's names.
"""

import contextlib
import difflib
import sys
from collections.abc import Callable, Iterable
from typing import NoReturn

LOST = 138  # the exit status of who is to be started again
_LONGEST_SHOWN = 80
_NEAR = 0.6  # difflib's own cutoff


class TfdistError(Exception):
    """An error of one line, with the exit status of the command that it ends.

    Pass either `problem`, or `expected` and `received`.
    """

    exit_code = 1

    def __init__(
        self,
        where: str,
        problem: str = "",
        *,
        expected: str = "",
        received: str = "",
        remedy: str = "",
    ) -> None:
        self.where = where
        self.problem = problem or f"expected {expected}, received {received}"
        self.remedy = remedy
        sentence = f"{where}: {self.problem}"
        super().__init__(printable(f"{sentence}. {remedy}" if remedy else sentence))


class ConfigError(TfdistError, ValueError):
    """A setting of the user's is wrong."""

    exit_code = 2


class DataError(TfdistError, ValueError):
    """The data are missing or malformed."""

    exit_code = 2


class Unavailable(DataError):
    """A data set is not on this machine, and its download fails."""


class StorageError(TfdistError, OSError):
    """A folder cannot be read or written."""

    exit_code = 2


class TaskLost(TfdistError, RuntimeError):
    """A task of the cluster has ended or is silent; a restart may help."""

    exit_code = LOST


class Preempted(TfdistError, RuntimeError):
    """This process received SIGTERM, and has saved its state where it could."""

    exit_code = LOST


class NotFinite(TfdistError, ArithmeticError):
    """The loss or a variable is NaN or infinite; a restart would not help."""


def exit_with_status(main: Callable[[], int | None]) -> NoReturn:
    """End the process with the status that `main` returns, or print its error and end with the error's."""
    try:
        sys.exit(main())
    except TfdistError as error:
        print_error(str(error))
        sys.exit(error.exit_code)


def print_error(line: str) -> None:
    """Print the line of an error; on a full disk or a closed terminal, the exit status alone tells it."""
    with contextlib.suppress(OSError):
        print(f"tfdist: {line}", file=sys.stderr, flush=True)


def shown(value: object) -> str:
    """Return a value as text for a one-line message: quoted, escaped and short.

    >>> shown("worker\\n")
    "'worker\\\\n'"
    """
    # A value from an untrusted file can be very large, so it is cut before repr where possible.
    if isinstance(value, (str, bytes)):
        value = value[: _LONGEST_SHOWN + 1]
    elif isinstance(value, (dict, list, tuple, set)):
        return f"a {type(value).__name__} of {len(value)}"
    elif isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "…"


def did_you_mean(word: object, known: Iterable[str], *, other: str = "") -> str:
    """Return the remedy for an unknown word: the most similar known word, or all of them, and `other`.

    >>> did_you_mean("workers", ["chief", "worker", "ps"])
    "Did you mean 'worker'?"
    """
    choices = list(known)
    near = difflib.get_close_matches(str(word)[:_LONGEST_SHOWN], choices, n=1, cutoff=_NEAR)
    return (
        f"Did you mean '{near[0]}'?"
        if near
        else f"Known: {', '.join([*choices, other] if other else choices)}"
    )


def is_near(word: str, known: str) -> bool:
    """Return whether a word may be a misspelling of a known one."""
    # Lengths first: an untrusted file may contain very many words, or a very long one.
    if not len(known) // 2 <= len(word) <= 2 * len(known):
        return False
    return difflib.SequenceMatcher(None, word, known).ratio() >= _NEAR


def first_line(error: object) -> str:
    """Return the first line of an error's text, or the name of its class if it has no text.

    >>> first_line(ValueError("one\\ntwo")), first_line(KeyboardInterrupt())
    ('one', 'KeyboardInterrupt')
    """
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def one_line(text: object) -> str:
    """Return the whole text of a message, such as an error of another program, on one line.

    >>> one_line(ValueError("one\\n  two"))
    'one two'
    """
    return " ".join(str(text).split())


def printable(text: str) -> str:
    """Return a text from elsewhere without line ends, terminal escapes and lone surrogates, as in names."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def own_error(error: BaseException) -> BaseException:
    """Return the error that was raised in code that AutoGraph has converted, without its StagingError."""
    while type(error).__name__ == "StagingError" and error.__context__ is not None:
        error = error.__context__
    return error
