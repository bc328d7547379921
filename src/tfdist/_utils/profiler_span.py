"""Name a part of the work in what TensorFlow's profiler records."""

import contextlib
import sys
from typing import Any

__all__ = ["AWAIT_SUMS", "EXCHANGE", "STEP", "WAITING", "span"]

# The names that timelines show. A part that waits lies inside an exchange.
STEP, EXCHANGE, WAITING, AWAIT_SUMS = "train", "exchange", "waiting for others", "await sums"
_NOTHING = contextlib.nullcontext()


def span(name: str, **facts: int | str) -> contextlib.AbstractContextManager[Any]:
    """Return a context whose time the profiler records under a name, while it records.

    Otherwise the context does nothing: it takes about a microsecond. A process that has not loaded TensorFlow
    has no profiler, and this function does not load it.
    """
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None:
        return _NOTHING
    recorded: contextlib.AbstractContextManager[Any] = tensorflow.profiler.experimental.Trace(name, **facts)
    return recorded
