"""Let replicas draw different random numbers, from seeds that they share.

Keras 3 keeps the state of each random generator in a variable. Replicas that work in step hold the same
value, and would all draw the same mask; workers that go each at their own pace read and write it in turns.
"""

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfdist.loop.generations import keras_of
from tfdist.loop.workers import worker_index

__all__ = ["Randomness", "drawing_apart"]

# Seeds of replicas are this far apart: 2^32 divided by the golden ratio, as far as can be from a pattern.
_APART = 2654435761
# What Keras 3 draws from where no seed is given.
_GLOBAL = "global_seed_generator"


class Randomness:
    """Know the random generators of a Keras 3 model, and let each replica mix its number into what it draws.

    The first replica's numbers are those that Keras draws in one process.
    """

    def __init__(self, model: Any, strategy: tf.distribute.Strategy) -> None:
        keras = keras_of(model)
        self._strategy = strategy
        self._globals = importlib.import_module(f"{keras.__name__}.src.backend.common.global_state")
        with strategy.scope():
            # Keras's own belongs to no model, and was perhaps made in another scope.
            self._unseeded = keras.random.SeedGenerator()
        found = [each for layer in model._flatten_layers() for each in layer._seed_generators]
        self._generators = list({id(each): each for each in [self._unseeded, *found]}.values())
        self._owned = {id(each.state) for each in self._generators}

    @property
    def unseeded(self) -> list[Any]:
        """Give the state that belongs to no layer."""
        return [self._unseeded.state]

    def owns(self, variable: Any) -> bool:
        """Say whether a variable is the state of a generator."""
        return id(variable) in self._owned

    def snapshot(self) -> list[tuple[Any, tf.Tensor]]:
        """Read each state once: a worker that reads twice may find another one's in between."""
        return [(each.state, tf.identity(each.state.value)) for each in self._generators]

    @contextlib.contextmanager
    def drawing(self) -> Iterator[None]:
        """Let what runs on replicas draw numbers that no other replica draws.

        It is for the context in which all replicas are one: where they meet, the next one runs in between.
        """
        for each in self._generators:
            each.next = self._mixing(each.next)
        try:
            yield
        finally:
            for each in self._generators:
                del each.next

    @contextlib.contextmanager
    def unseeded_from_here(self) -> Iterator[None]:
        """Draw, in a replica, from a generator of its own where no seed is given."""
        before = self._globals.get_global_attribute(_GLOBAL)  # of this thread, and so of this replica
        self._globals.set_global_attribute(_GLOBAL, self._unseeded)
        try:
            yield
        finally:
            self._globals.set_global_attribute(_GLOBAL, before)

    def _mixing(self, draw: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
        def mixed(*args: Any, **kwargs: Any) -> tf.Tensor:
            seed = draw(*args, **kwargs)
            return seed + tf.cast(tf.stack([self._replica() * _APART, 0]), seed.dtype)

        return mixed

    def _replica(self) -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        replica = tf.cast(context.replica_id_in_sync_group, tf.int64)
        if isinstance(self._strategy, tf.distribute.ParameterServerStrategy):
            replica += worker_index() * context.num_replicas_in_sync
        return replica


@contextlib.contextmanager
def drawing_apart(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Draw, in a replica of a Keras 2 model, numbers that the replicas of other processes do not draw.

    TensorFlow's own random operations take their seeds from the graph and their place in it. Where the seed
    is set, every process has the same, and would draw the same.
    """
    graph = tf.compat.v1.get_default_graph()
    before = graph.seed
    if isinstance(strategy, tf.distribute.ParameterServerStrategy):
        graph.seed = None  # all workers run this one graph: the seed is then each worker's own
    elif before is not None:
        context = tf.distribute.get_replica_context()
        replica = tf.get_static_value(tf.convert_to_tensor(context.replica_id_in_sync_group))
        graph.seed = before + int(replica) * _APART
    try:
        yield
    finally:
        graph.seed = before
