"""Find out, while no data moves in a ring, whether a neighbour still computes or is lost."""

from collections.abc import Mapping

from tfdist.coordination.health import SILENCE_LIMIT, SilenceClock, answers

__all__ = ["Silence"]


class Silence:
    """How long neighbours' TensorFlow servers have not answered; a server answers while its task computes."""

    def __init__(self, addresses: Mapping[str, str], timeout: float | None) -> None:
        """Store which servers to ask.

        Args:
            addresses: The neighbours' addresses in the cluster, by their names.
            timeout: Seconds that an exchange may stand still even if the servers answer; None for no limit.
        """
        self._addresses, self._timeout = addresses, timeout
        self._clocks = {name: SilenceClock() for name in addresses}

    def why_lost(self, seconds: float) -> str:
        """Return why an exchange that has stood still for some seconds will not continue; empty if it may."""
        if self._timeout is not None and seconds >= self._timeout:
            return f"nothing came for {seconds:.0f} s, and communication.timeout is {self._timeout:g} s"
        for name, address in self._addresses.items():
            silent_for = self._clocks[name].after(answers(address), most=seconds)
            if silent_for >= SILENCE_LIMIT:
                return f"{name} has been silent for {silent_for:.0f} s"
        return ""
