"""Group values by a key, such as tensors by their type: what goes together has one type or one server."""

from collections.abc import Iterable
from typing import TypeVar

_Key = TypeVar("_Key")


def indices_by_key(keys: Iterable[_Key]) -> dict[_Key, list[int]]:
    """Return the indices of each key, in the order in which the keys first appear: the same on all tasks."""
    indices: dict[_Key, list[int]] = {}
    for index, key in enumerate(keys):
        indices.setdefault(key, []).append(index)
    return indices
