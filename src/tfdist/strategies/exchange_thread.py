"""Run exchanges one after the other in a thread, while the caller computes."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

Result = TypeVar("Result")


class ExchangeThread:
    """A thread that runs exchanges in the order in which they are submitted.

    It is a daemon, unlike the threads of `ThreadPoolExecutor`: the process can end while an exchange waits
    for a task that is gone.
    """

    def __init__(self) -> None:
        self._submitted: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._last: Future[Any] | None = None
        self._lock = threading.Lock()

    def submit(self, exchange: Callable[[], Result]) -> "Future[Result]":
        """Start an exchange after those that were submitted before; return its future result."""
        future: Future[Result] = Future()
        with self._lock:
            if self._last is None:
                threading.Thread(target=self._run_all, name="tfdist-exchange", daemon=True).start()
            self._last = future
            self._submitted.put((future, exchange))
        return future

    def run(self, exchange: Callable[[], Result]) -> Result:
        """Run an exchange after those that were submitted before; return its result."""
        with self._lock:
            is_idle = self._last is None or self._last.done()
        # The order of the graph keeps other callers away meanwhile.
        return exchange() if is_idle else self.submit(exchange).result()

    def _run_all(self) -> None:
        while True:
            future, exchange = self._submitted.get()
            try:
                result = exchange()
            except BaseException as error:  # noqa: BLE001 (the caller that asks for the result gets it)
                future.set_exception(error)
            else:
                future.set_result(result)
            del future, exchange
