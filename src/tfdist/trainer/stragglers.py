"""Name the tasks that take much longer to compute a step than the others."""

import logging
from collections.abc import Mapping

import numpy as np

__all__ = ["Stragglers"]

# Times the median of the others. Above the first, a task is a straggler; below the second, it no longer is.
_SLOW, _WELL = 2.0, 1.5
_log = logging.getLogger("tfdist")


class Stragglers:
    """A monitor that logs when a task becomes a straggler, and when it has caught up."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def judge(self, milliseconds: Mapping[str, float]) -> None:
        """Compare the milliseconds that each task took for a step in one period."""
        for task, taken in milliseconds.items():
            others = [other for name, other in milliseconds.items() if name != task]
            if not others:
                return
            median = float(np.median(others))
            if task not in self._known and taken > _SLOW * median > 0:
                self._known.add(task)
                ratio = taken / median
                _log.warning(
                    "%s takes %s ms a step, %.1f times the median of the others (%s ms)",
                    task, _short(taken), ratio, _short(median),
                )  # fmt: skip
            elif task in self._known and taken < _WELL * median:
                self._known.remove(task)
                _log.info(
                    "%s keeps up again: %s ms a step, the others %s", task, _short(taken), _short(median)
                )


def _short(milliseconds: float) -> str:
    return f"{milliseconds:.0f}" if milliseconds >= 10 else f"{milliseconds:.1f}"
