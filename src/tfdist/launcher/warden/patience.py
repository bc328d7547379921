"""Wait the longer before a start, the more often the last ones have soon come to nothing."""

__all__ = ["Patience"]

_SHORT_LIFE = 60.0
_LONGEST = 60.0


class Patience:
    """Remember of one task, or of all together, how often it was lost soon after it was started.

    The first time it is started again at once. What is soon lost again may lack something that comes back
    with time, such as memory: it is given twice as much of that from one start to the next.
    """

    def __init__(self) -> None:
        self._in_a_row = 0

    def pause_after(self, seconds: float) -> float:
        """Give the seconds to wait before the next start, where the last one has lived for so many."""
        self._in_a_row = self._in_a_row + 1 if seconds < _SHORT_LIFE else 0
        return min(2.0 ** (self._in_a_row - 1), _LONGEST) if self._in_a_row > 1 else 0.0
