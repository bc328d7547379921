"""Run threads for as long as a block lasts, and end the process from a thread."""

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import NoReturn, TypeVar

from tfdist.errors import TfdistError

_Task = TypeVar("_Task")
_Self = TypeVar("_Self", bound="TaskThreads")


@contextlib.contextmanager
def running_beside(function: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run a function in a thread; at the end of the block set the event it is given, and wait for it."""
    is_over = threading.Event()
    thread = threading.Thread(target=function, args=(is_over,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


class TaskThreads:
    """One thread per task that runs a function, because an operation on a silent task does not return.

    Attributes:
        is_over: Set when the block has ended; the function must return then.
    """

    def __init__(self, function: Callable[[_Task], None], tasks: Iterable[_Task]) -> None:
        self.is_over = threading.Event()
        self._threads = [threading.Thread(target=function, args=(task,), daemon=True) for task in tasks]

    def __enter__(self: _Self) -> _Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_over.set()


def end_process(error: TfdistError) -> NoReturn:
    """Print an error, and end this process, whose main thread waits in a call that nothing else ends."""
    print(f"tfdist: {error}", file=sys.stderr, flush=True)
    logging.shutdown()
    os._exit(error.exit_code)
