"""Say what went wrong, in one line: where, what was expected, what was received, and the remedy.

The exceptions, and the exit status that the command line gives for each:

    TfdistError                           1
    ├── ConfigError  (ValueError)         2  a setting, a file, a variable or a flag of the user's is wrong
    ├── DataError    (ValueError)         2  the data cannot be had, or are not what they are said to be
    ├── StorageError (OSError)            2  a folder cannot be written to or read: permissions, a full disk
    ├── TaskLost     (RuntimeError)     138  a task of the cluster is gone or silent: start this one again
    ├── Preempted    (RuntimeError)     138  this task was told to end (SIGTERM): start it again
    └── NotFinite    (ArithmeticError)    1  the loss or a variable has become NaN or infinite

Each is also the builtin that a caller would catch without knowing tfdist.
"""

import difflib
from collections.abc import Iterable

__all__ = [
    "ConfigError",
    "DataError",
    "NotFinite",
    "Preempted",
    "StorageError",
    "TaskLost",
    "TfdistError",
    "did_you_mean",
    "is_near",
    "shown",
]

_LONGEST_SHOWN = 80
_NEAR = 0.6  # difflib's own cutoff


class TfdistError(Exception):
    """Carry one line for a person to read, and the exit status that a command ends with.

    Either `problem` says what is wrong, or `expected` and `received` do.
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
        super().__init__(_one_line(f"{sentence}. {remedy}" if remedy else sentence))


class ConfigError(TfdistError, ValueError):
    """Report a setting of the user's that cannot be used."""

    exit_code = 2


class DataError(TfdistError, ValueError):
    """Report data that cannot be had, or that are not what they are said to be."""

    exit_code = 2


class StorageError(TfdistError, OSError):
    """Report a folder that cannot be written to or read."""

    exit_code = 2


class TaskLost(TfdistError, RuntimeError):
    """Report a task of the cluster that is gone or silent; starting again may cure it."""

    exit_code = 138


class Preempted(TfdistError, RuntimeError):
    """Report that this process was told to end, and has saved what it could."""

    exit_code = 138


class NotFinite(TfdistError, ArithmeticError):
    """Report a loss or a variable that is no number any more; starting again would end in the same."""


def shown(value: object) -> str:
    """Give a value as it may stand in a one-line message: quoted, escaped and not too long.

    >>> shown("worker\\n")
    "'worker\\\\n'"
    """
    # A nested value from a stranger's file can be large or self-made: cut before repr where possible.
    if isinstance(value, (str, bytes)):
        value = value[: _LONGEST_SHOWN + 1]
    elif isinstance(value, (dict, list, tuple, set)):
        return f"a {type(value).__name__} of {len(value)}"
    elif isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "…"


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Give the remedy for an unknown word: the nearest known one, or all of them.

    >>> did_you_mean("workers", ["chief", "worker", "ps"])
    "Did you mean 'worker'?"
    """
    choices = list(known)
    near = difflib.get_close_matches(str(word)[:_LONGEST_SHOWN], choices, n=1, cutoff=_NEAR)
    return f"Did you mean '{near[0]}'?" if near else f"Known: {', '.join(choices)}"


def is_near(word: str, known: str) -> bool:
    """Say whether a word may be a slip for a known one."""
    # Lengths first: a stranger's file may hold very many words, or a very long one.
    if not len(known) // 2 <= len(word) <= 2 * len(known):
        return False
    return difflib.SequenceMatcher(None, word, known).ratio() >= _NEAR


def _one_line(text: str) -> str:
    # Names of files and keys come from outside, and may hold line ends, terminal escapes or lone surrogates.
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
