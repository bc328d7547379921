"""Send what this process writes to a descriptor elsewhere while a block runs, also what C++ code writes."""

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def redirected(descriptor: int, to: int) -> Iterator[None]:
    """Make a descriptor that of another file in the block."""
    real = os.dup(descriptor)
    try:
        os.dup2(to, descriptor)
        yield
    finally:
        os.dup2(real, descriptor)
        os.close(real)
