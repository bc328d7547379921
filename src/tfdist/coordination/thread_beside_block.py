"""Run a thread for as long as a block lasts; imports no TensorFlow, unlike thread_per_task."""

import contextlib
import threading
from collections.abc import Callable, Iterator

__all__ = ["running_beside"]


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
