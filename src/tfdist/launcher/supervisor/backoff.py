"""Increase the pause before a restart each time that a task is lost soon after its start."""

__all__ = ["Backoff"]

_SHORT_LIFETIME = 60.0
_LONGEST_PAUSE = 60.0


class Backoff:
    """How often a task, or all together, was lost soon after its start.

    The first restart is immediate. A task that is soon lost again may lack something that needs time, such
    as free memory. So each further pause is twice as long.
    """

    def __init__(self) -> None:
        self._in_a_row = 0

    def pause_after(self, seconds: float) -> float:
        """Return the seconds to wait before the next start, after a lifetime of this many seconds."""
        self._in_a_row = self._in_a_row + 1 if seconds < _SHORT_LIFETIME else 0
        return min(2.0 ** (self._in_a_row - 1), _LONGEST_PAUSE) if self._in_a_row > 1 else 0.0
