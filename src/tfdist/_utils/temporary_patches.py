"""Set attributes, and replace methods of objects and classes, for the time of a block."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any


@contextlib.contextmanager
def attributes_set(owner: Any, **values: Any) -> Iterator[None]:
    """Set attributes of an object, a class or a module within the block; for one thread at a time.

    Afterwards, an attribute that the owner itself did not have, such as an inherited one, is deleted.
    """
    before = {name: vars(owner)[name] for name in values if name in vars(owner)}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name in values:
            if name in before:
                setattr(owner, name, before[name])
            else:
                delattr(owner, name)


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
