"""Set attributes for the time of a block."""

import contextlib
from collections.abc import Iterator
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
