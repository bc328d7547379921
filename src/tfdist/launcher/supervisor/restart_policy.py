"""Decide after which pause a lost task starts again, and what renews the count of restarts."""

__all__ = ["Backoff", "NewCheckpoints"]

_SHORT_LIFETIME = 60.0
_LONGEST_PAUSE = 60.0


class Backoff:
    """The pause before a restart, by how often a task, or all together, was lost soon after its start.

    The first restart is immediate. A task that is soon lost again may lack something that needs time, such
    as free memory. So each further pause is twice as long.
    """

    def __init__(self) -> None:
        self._in_a_row = 0

    def pause_after(self, seconds: float) -> float:
        """Return the seconds to wait before the next start, after a lifetime of this many seconds."""
        self._in_a_row = self._in_a_row + 1 if seconds < _SHORT_LIFETIME else 0
        return min(2.0 ** (self._in_a_row - 1), _LONGEST_PAUSE) if self._in_a_row > 1 else 0.0


class NewCheckpoints:
    """The steps of the checkpoints that the chief has saved, over all of its lives."""

    def __init__(self) -> None:
        self._highest = self._last = 0

    def begin_life(self) -> None:
        """Note that the chief starts, maybe from an older checkpoint than it has saved."""
        self._last = 0

    def is_new(self, step: int) -> bool:
        """Return whether a checkpoint that the chief saves now is progress.

        In one life of the chief, steps that begin again at a lower number are those of another training.
        """
        if step < self._last:
            self._highest = 0
        self._last, is_new = step, step > self._highest
        self._highest = max(self._highest, step)
        return is_new
