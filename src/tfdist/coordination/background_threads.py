"""Run threads for as long as a block lasts, and end the process from a thread."""

import contextlib
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import NoReturn, TypeVar

from tfdist.errors import TfdistError, print_error

_Task = TypeVar("_Task")
_Item = TypeVar("_Item", bound=Hashable)
_Result = TypeVar("_Result")
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


def each_in_time(
    function: Callable[[_Item], _Result], items: Iterable[_Item], seconds: float, *, most: int = 64
) -> dict[_Item, _Result]:
    """Call a function with each item, in so many threads; return the results that have come in time.

    Some calls cannot be interrupted, such as those of the system's resolver. What is late continues in a
    thread that ends with the process.
    """
    waiting: queue.SimpleQueue[_Item] = queue.SimpleQueue()
    results: dict[_Item, _Result] = {}
    for item in (items := list(items)):
        waiting.put(item)

    def work() -> None:
        while True:
            try:
                item = waiting.get_nowait()
            except queue.Empty:
                return
            results[item] = function(item)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(len(items), most))]
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    came = dict(results)
    return {item: came[item] for item in items if item in came}


def end_process(error: TfdistError) -> NoReturn:
    """Print an error, and end this process, whose main thread waits in a call that nothing else ends."""
    try:
        print_error(str(error))
        logging.shutdown()
    finally:
        os._exit(error.exit_code)
