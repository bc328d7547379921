"""Hide from a model's custom step that there are several replicas."""

import contextlib
import threading
from collections.abc import Iterator

import tensorflow as tf

__all__ = ["replicas_hidden", "replicas_hideable"]

_HERE = threading.local()  # TensorFlow traces each replica in a thread of its own


@contextlib.contextmanager
def replicas_hideable() -> Iterator[None]:
    """Make `replicas_hidden` work within the block; for one thread at a time."""
    kind = tf.distribute.Strategy
    is_own = "num_replicas_in_sync" in vars(kind)
    original = kind.num_replicas_in_sync

    def count(strategy: tf.distribute.Strategy) -> int:
        return 1 if getattr(_HERE, "is_hidden", False) else original.fget(strategy)

    kind.num_replicas_in_sync = property(count, doc=original.__doc__)
    try:
        yield
    finally:
        if is_own:
            kind.num_replicas_in_sync = original
        else:
            del kind.num_replicas_in_sync


@contextlib.contextmanager
def replicas_hidden(is_hidden: bool = True) -> Iterator[None]:
    """Make strategies count one replica in this thread, or all of them again, within the block."""
    before = getattr(_HERE, "is_hidden", False)
    _HERE.is_hidden = is_hidden
    try:
        yield
    finally:
        _HERE.is_hidden = before
