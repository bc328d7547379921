"""Data with Python code that mirrored workers read with the chief's random numbers."""

from typing import Any

import tensorflow as tf

from tfdist.strategies.current_cluster_and_strategy import is_chief_of
from tfdist.strategies.share_random_state import share_random_state
from tfdist.training.workers.exchange_numbers import sum_over_workers


class WithRandomStatesOfChief:
    """A distributed data set before each pass over which all workers take the chief's random states.

    A PyDataset is shuffled by Python's generator when a pass begins, and code of the user's may draw from
    NumPy's. What only one worker has drawn since the last pass, as in a callback of the chief, would
    otherwise make it cut up another order of the data.
    """

    def __init__(self, dataset: Any, strategy: tf.distribute.Strategy) -> None:
        self._dataset, self._strategy = dataset, strategy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)

    def __iter__(self) -> Any:
        def add_up(values: Any) -> Any:
            return sum_over_workers(self._strategy, values).numpy().tolist()

        share_random_state(add_up, is_chief=is_chief_of(self._strategy))
        return iter(self._dataset)
