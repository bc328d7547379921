"""Name a part of the work in what TensorFlow's profiler records."""

import contextlib
import sys
from typing import Any

# The names that timelines show. A part that waits lies inside an exchange.
STEP, EXCHANGE, WAITING, AWAIT_SUMS = "train", "exchange", "waiting for others", "await sums"
_NOTHING = contextlib.nullcontext()
_traces: list[Any] = []  # TensorFlow's class, once it is known


def span(name: str, **facts: int | str) -> contextlib.AbstractContextManager[Any]:
    """Return a context whose time the profiler records under a name, while it records.

    Otherwise the context does nothing: it takes a few microseconds. A process that has not loaded TensorFlow
    has no profiler, and this function does not load it.
    """
    if not _traces:
        if "tensorflow" not in sys.modules:
            return _NOTHING
        _traces.append(sys.modules["tensorflow"].profiler.experimental.Trace)  # looking it up takes longer
    recorded: contextlib.AbstractContextManager[Any] = _traces[0](name, **facts)
    return recorded
