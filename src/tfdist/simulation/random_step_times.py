"""Draw how long simulated steps take."""

import math

import numpy as np

from tfdist.simulation.setup import Compute

_AT_ONCE = 4096


class Draws:
    """A generator of the seconds of steps, which are the same for the same seed."""

    def __init__(self, compute: Compute, seed: int) -> None:
        self._compute = compute
        self._numbers = np.random.default_rng(seed)
        self._drawn: list[float] = []

    def step(self) -> float:
        """Draw the seconds of one step."""
        if not self._drawn:
            self._drawn = [float(seconds) for seconds in self.steps(_AT_ONCE)]
        return self._drawn.pop()

    def steps(self, count: int) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
        """Draw the seconds of several steps."""
        compute = self._compute
        # The parameter of a lognormal factor with mean 1 and the given deviation.
        sigma = math.sqrt(math.log1p(compute.spread**2))
        factors = self._numbers.lognormal(-sigma * sigma / 2, sigma, count)
        slow = self._numbers.random(count) < compute.slow_share
        mean = compute.seconds_per_example * compute.batch_size
        return np.asarray(mean * factors * np.where(slow, compute.slow_factor, 1.0))
