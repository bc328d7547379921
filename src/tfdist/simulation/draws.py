"""Draw how long steps take."""

import math

import numpy as np

from tfdist.simulation.setup import Compute

__all__ = ["Draws"]

_AT_ONCE = 4096


class Draws:
    """Draw the seconds of steps, the same ones from the same seed."""

    def __init__(self, compute: Compute, seed: int) -> None:
        self._compute = compute
        self._numbers = np.random.default_rng(seed)
        self._drawn: list[float] = []

    def step(self) -> float:
        """Draw one step's seconds."""
        if not self._drawn:
            self._drawn = [float(each) for each in self.steps(_AT_ONCE)]
        return self._drawn.pop()

    def steps(self, count: int) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
        """Draw the seconds of several steps."""
        compute = self._compute
        # Of a lognormal factor with mean 1 and the given deviation.
        sigma = math.sqrt(math.log1p(compute.spread**2))
        factors = self._numbers.lognormal(-sigma * sigma / 2, sigma, count)
        slow = self._numbers.random(count) < compute.slow_share
        mean = compute.seconds_per_example * compute.batch_size
        return np.asarray(mean * factors * np.where(slow, compute.slow_factor, 1.0))
