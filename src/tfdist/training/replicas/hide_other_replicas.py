"""Hide other replicas from what a thread computes, for the time of a block."""

import contextlib
import threading
from collections.abc import Iterator

import tensorflow as tf

from tfdist._utils.temporary_patches import attributes_set

_HERE = threading.local()  # TensorFlow traces each replica in a thread of its own


@contextlib.contextmanager
def replicas_hideable() -> Iterator[None]:
    """Make `replicas_hidden` work within the block; for one thread at a time."""
    kind = tf.distribute.Strategy
    original = kind.num_replicas_in_sync

    def count(strategy: tf.distribute.Strategy) -> int:
        return 1 if getattr(_HERE, "is_hidden", False) else original.fget(strategy)

    with attributes_set(kind, num_replicas_in_sync=property(count, doc=original.__doc__)):
        yield


@contextlib.contextmanager
def replicas_hidden(is_hidden: bool = True) -> Iterator[None]:
    """Make strategies count one replica in this thread, or all of them again, within the block."""
    before = getattr(_HERE, "is_hidden", False)
    _HERE.is_hidden = is_hidden
    try:
        yield
    finally:
        _HERE.is_hidden = before
