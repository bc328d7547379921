"""Run one thread per task, because an operation on a silent task does not return."""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

__all__ = ["TaskThreads", "call_each"]

_log = logging.getLogger("tfdist")
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
_Self = TypeVar("_Self", bound="TaskThreads")


class TaskThreads:
    """One thread per task that runs a function, for as long as the block lasts.

    Attributes:
        is_over: Set when the block has ended; the function must return then.
    """

    def __init__(self, function: Callable[[_Key], None], tasks: Iterable[_Key]) -> None:
        self.is_over = threading.Event()
        self._threads = [threading.Thread(target=function, args=(task,), daemon=True) for task in tasks]

    def __enter__(self: _Self) -> _Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_over.set()


def call_each(
    function: Callable[[_Key], _Value], tasks: Iterable[_Key], seconds: float
) -> dict[_Key, _Value]:
    """Call a function that uses TensorFlow for each task; return the values that come in time."""
    import tensorflow as tf

    from tfdist._utils.tf_private import own_executor

    values: dict[_Key, _Value] = {}

    def call(task: _Key) -> None:
        # A separate executor: otherwise the failure of one task counts as that of the next.
        with own_executor():
            try:
                values[task] = function(task)
            except tf.errors.OpError as error:
                _log.info("%s does not answer: %s", task, str(error).splitlines()[0])

    threads = [threading.Thread(target=call, args=(task,), daemon=True) for task in tasks]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return dict(values)
