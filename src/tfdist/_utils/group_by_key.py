"""Group values by a key, such as tensors by their type: what goes together has one type or one server."""

from collections.abc import Iterable
from typing import TypeVar

_Key = TypeVar("_Key")


def places_by_key(keys: Iterable[_Key]) -> dict[_Key, list[int]]:
    """Return the places of each key, in the order in which the keys first appear: the same on all tasks."""
    places: dict[_Key, list[int]] = {}
    for place, key in enumerate(keys):
        places.setdefault(key, []).append(place)
    return places
