"""Define the place in the data that a checkpoint holds, for the runners of all kinds."""

from typing import Any

import msgspec


class PlaceInData(msgspec.Struct):
    """The place of a runner in its data.

    Attributes:
        begun: How often the data have begun.
        taken: The batches that were taken since then; on asynchronous workers, those of each part.
        is_open: Whether the next epoch continues here.
        unread: How often the data have begun besides, at the end of a pass over all of them.
    """

    begun: int
    taken: Any
    is_open: bool
    unread: int = 0
