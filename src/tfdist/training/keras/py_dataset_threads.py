"""End the threads and processes that read a PyDataset, before each pass over it and with the call.

Keras ends them where its own epochs end. Where a pass ends early, they would continue: the next pass would
begin with batches that are left over, and wait for others that never come.
"""

import contextlib
import queue
from collections.abc import Callable, Iterator
from typing import Any

from tfdist._utils.keras_private import wrap_iterators_of_adapter

_new: list[Any] = []  # enqueuers of Keras 3, of the data that were made for the call that begins next


@contextlib.contextmanager
def threads_of_data_ended() -> Iterator[None]:
    """End, after the block, the threads and processes of the data that were made before it."""
    own = [*_new]
    _new.clear()
    try:
        yield
    finally:
        for enqueuer in own:
            _stop(enqueuer)


def restart_for_each_pass(adapter: Any) -> None:
    """Make an adapter of Keras 3 begin each pass with its first batch, if threads or processes read ahead."""
    enqueuer = getattr(adapter, "enqueuer", None)
    if not hasattr(enqueuer, "ready_queue"):  # there is none, or it is one of the first versions
        return
    _new.append(enqueuer)
    if adapter.num_batches is not None:  # an infinite PyDataset continues where it was

        def from_beginning(begin: Callable[[], Any]) -> Any:
            _stop(enqueuer)
            return begin()

        wrap_iterators_of_adapter(adapter, from_beginning)


def _stop(enqueuer: Any) -> None:
    """End the threads and processes of an enqueuer, and forget what they have read."""
    thread = enqueuer.run_thread
    with contextlib.suppress(Exception):  # about a batch that nobody has asked for
        enqueuer.stop()
    while thread is not None and thread.is_alive():
        with contextlib.suppress(queue.Empty):
            enqueuer.future_queue.get(timeout=0.1)
    for batches in (enqueuer.ready_queue, enqueuer.future_queue):
        with batches.mutex:
            batches.queue.clear()
