"""Print the errors of tfdist in one line, where nothing in a script catches them."""

import sys
import traceback
from types import TracebackType

import tensorflow as tf

from tfdist.coordination.stop_signals import ignore_stop_signals
from tfdist.errors import LOST, ConfigError, TfdistError, own_error, print_error
from tfdist.strategies.current_cluster_and_strategy import current_strategy
from tfdist.training.error_messages.lost_task_errors import is_about_a_task, naming_lost_tasks
from tfdist.transport.listen_and_call import ExchangeError

_SECOND_STRATEGY = (
    "makes a strategy of its own",
    "Leave it out: tfdist.start() makes the strategy, and enters its scope for the whole script",
)
_NO_RUN = (
    "takes a training step outside of strategy.run, so on no replica",
    "Call it by strategy.run(step, args=(batch,)), with batches of "
    "strategy.experimental_distribute_dataset(dataset); docs/script.md has a whole loop",
)
_IN_A_BRANCH = (
    "applies gradients inside of a tf.function or a branch of the step, as an optimizer with "
    "gradient_accumulation_steps or ema_overwrite_frequency does by itself",
    "Decorate the function that calls strategy.run, and none inside of it; model.fit has these options",
)
_APART = (
    "exchanges on one worker what others do not, such as a metric's result on the chief alone",
    "Call it on all workers, in the same order, and only print under tfdist.is_chief()",
)
_NOT_IMPORTED = (
    "uses an operation of a package, such as tensorflow_text, that a worker has not imported",
    "Import the package before tfdist.start(), in which the worker serves for the rest of its life",
)
# What TensorFlow, Keras and the transport say to mistakes of scripts, and what to say instead.
_MISTAKES = {
    "Mixing different tf.distribute.Strategy objects": _SECOND_STRATEGY,
    "handle is not available outside the replica context": _NO_RUN,
    "'NoneType' object has no attribute 'merge_call'": _NO_RUN,
    "cannot be called in cross-replica context": _NO_RUN,
    "called while defining a new graph or a tf.function": _IN_A_BRANCH,
    "is at another exchange": _APART,
    "Op type not registered": _NOT_IMPORTED,
}
_KINDS = (RuntimeError, ValueError, AttributeError, tf.errors.OpError, ExchangeError)


def print_own_errors_in_a_line() -> None:
    """Print an uncaught error of tfdist in one line from now on, and end the process with its exit status.

    So are TensorFlow's errors of what scripts of tutorials do: make a second strategy, or train outside of
    `strategy.run`. An exchange in a loop of the script's own that fails names the lost task, as `fit` does.
    """
    leave_out_errors_of_executors()
    if getattr(sys.excepthook, "__module__", None) == __name__:
        return
    others = sys.excepthook

    def print_own(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        own = own_error(error)
        own = own if isinstance(own, TfdistError) else _explained(own)
        if not isinstance(own, TfdistError):
            others(kind, error, trace)
            return
        line = next(iter(traceback.extract_tb(trace, limit=1)), None)
        where = "" if line is None else f" ({line.filename}, line {line.lineno})"
        print_error(f"{own}{where}")
        if own.exit_code == LOST:
            ignore_stop_signals()
        raise SystemExit(own.exit_code)  # Python ends the process with this status

    sys.excepthook = print_own


def _explained(error: BaseException) -> BaseException:
    """Return an error of tfdist for what TensorFlow and Keras say; any other error as it is."""
    named = _naming_lost_tasks(error)
    is_of_tensorflow = type(error).__module__.startswith("tensorflow.")  # has kinds without a public name
    if isinstance(named, ConfigError) or not (is_of_tensorflow or isinstance(error, _KINDS)):
        return named
    text = str(error)
    return next((_mistake(known) for known in _MISTAKES if known in text), named)


def _naming_lost_tasks(error: BaseException) -> BaseException:
    """Return why an exchange outside of tfdist's own calls has failed; any other error as it is."""
    strategy = current_strategy()
    if strategy is None or not is_about_a_task(error):
        return error
    try:
        with naming_lost_tasks("the script", strategy):
            raise error
    except (TfdistError, tf.errors.OpError, ExchangeError) as named:
        return named


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
