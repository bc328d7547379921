"""Find out, while nothing moves in a ring, whether a neighbour computes for long or is lost."""

import time
from collections.abc import Mapping

from tfdist.probing import answers

__all__ = ["Silence"]

_LONGEST_SILENCE = 10.0  # seconds, as TensorFlow's own tasks may be silent for
_MOST_COUNTED_AT_ONCE = 5.0  # this process itself may have been stopped for a while


class Silence:
    """Ask the TensorFlow servers of neighbours whether they are there: they answer while a task computes."""

    def __init__(self, addresses: Mapping[str, str], timeout: float | None) -> None:
        """Say who is asked.

        Args:
            addresses: The neighbours' addresses in the cluster, by their names.
            timeout: Seconds that an exchange may stand still, whatever they answer; any number where None.
        """
        self._addresses, self._timeout = addresses, timeout
        self._silent = dict.fromkeys(addresses, 0.0)
        self._asked_at = 0.0

    def why_lost(self, seconds: float) -> str:
        """Say why an exchange that has stood still for so many seconds will not go on, or nothing."""
        if self._timeout is not None and seconds >= self._timeout:
            return f"nothing came for {seconds:.0f} s, and communication.timeout is {self._timeout:g} s"
        passed, self._asked_at = time.monotonic() - self._asked_at, time.monotonic()
        for name, address in self._addresses.items():
            counted = min(passed, seconds, _MOST_COUNTED_AT_ONCE)
            self._silent[name] = 0.0 if answers(address) else min(self._silent[name], seconds) + counted
            if self._silent[name] >= _LONGEST_SILENCE:
                return f"{name} has been silent for {self._silent[name]:.0f} s"
        return ""
