"""Replace methods of TensorFlow, Keras, and of a user's model, for the time of a block, and restore them."""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdist._utils.attributes_within_block import attributes_set


@contextlib.contextmanager
def methods_replaced(methods: Sequence[tuple[Any, str, Callable[..., Any]]]) -> Iterator[None]:
    """Replace methods of objects, or of all objects of a class, within the block; for one thread at a time.

    Args:
        methods: An object or a class, the name of its method, and what to call instead: a function of the
            object's method, the object, and the method's arguments.
    """
    with contextlib.ExitStack() as stack:
        for owner, name, replacement in methods:
            if isinstance(owner, type):
                method = _calling(replacement, getattr(owner, name))
                stack.enter_context(attributes_set(owner, **{name: method}))
            else:
                vars(owner)[name] = functools.partial(replacement, getattr(owner, name), owner)
                stack.callback(vars(owner).pop, name)
        yield


def _calling(replacement: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(owner: Any, *args: Any, **kwargs: Any) -> Any:
        return replacement(functools.partial(original, owner), owner, *args, **kwargs)

    return method


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
