"""Tell whether a checkpoint is one that the tasks of a launch had not reached before."""

__all__ = ["NewCheckpoints"]


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
