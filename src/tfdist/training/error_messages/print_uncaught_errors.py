"""Print the errors of tfdist in one line, where nothing in a script catches them."""

import sys
import traceback
from types import TracebackType

import tensorflow as tf

from tfdist.errors import ConfigError, TfdistError, own_error

_SECOND_STRATEGY = (
    "makes a strategy of its own",
    "Leave it out: tfdist.start() makes the strategy, and enters its scope for the whole script",
)
_NO_RUN = (
    "takes a training step outside of strategy.run, so on no replica",
    "Call it by strategy.run(step, args=(batch,)), with batches of "
    "strategy.experimental_distribute_dataset(dataset); docs/script.md has a whole loop",
)
# What TensorFlow and Keras say to mistakes of scripts for one process, and what to say instead.
_MISTAKES = {
    "Mixing different tf.distribute.Strategy objects": _SECOND_STRATEGY,
    "handle is not available outside the replica context": _NO_RUN,
    "'NoneType' object has no attribute 'merge_call'": _NO_RUN,
    "cannot be called in cross-replica context": _NO_RUN,
}


def print_own_errors_in_a_line() -> None:
    """Print an uncaught error of tfdist in one line from now on, and end the process with its exit status.

    So are TensorFlow's errors of what scripts of tutorials do: make a second strategy, or train outside of
    `strategy.run`.
    """
    leave_out_errors_of_executors()
    if getattr(sys.excepthook, "__module__", None) == __name__:
        return
    others = sys.excepthook

    def print_own(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        own = own_error(error)
        if isinstance(own, (RuntimeError, ValueError, AttributeError)):
            text = str(own)
            own = next((_mistake(known) for known in _MISTAKES if known in text), own)
        if not isinstance(own, TfdistError):
            others(kind, error, trace)
            return
        line = next(iter(traceback.extract_tb(trace, limit=1)), None)
        where = "" if line is None else f" ({line.filename}, line {line.lineno})"
        print(f"tfdist: {own}{where}", file=sys.stderr, flush=True)
        raise SystemExit(own.exit_code)  # Python ends the process with this status

    sys.excepthook = print_own


def _mistake(known: str) -> ConfigError:
    problem, remedy = _MISTAKES[known]
    return ConfigError("the script", problem, remedy=remedy)


def leave_out_errors_of_executors() -> None:
    """Print nothing from now on when a thread's executor is deleted after a call to a lost task.

    The error of that call has been raised already, and names the task.
    """
    if getattr(sys.unraisablehook, "__module__", None) == __name__:
        return
    others = sys.unraisablehook

    def leave_out(ignored: "sys.UnraisableHookArgs") -> None:
        is_executor = getattr(ignored.object, "__qualname__", "") == "Executor.__del__"
        if not (is_executor and isinstance(ignored.exc_value, tf.errors.OpError)):
            others(ignored)

    sys.unraisablehook = leave_out
