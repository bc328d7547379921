"""Draw different random numbers on each replica, from seeds that the replicas share.

Keras 3 keeps the state of each random generator in a variable. Replicas that work in step hold the same
value, and would all draw the same mask. Asynchronous workers read and write it in turns.
"""

import contextlib
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfdist._utils.keras_2_and_3 import keras_of
from tfdist._utils.keras_private import has_unseeded_generator, layers_of, seed_generators, unseeded_generator
from tfdist._utils.strategy_kinds import is_asynchronous
from tfdist.training.parameter_servers.worker_index import worker_index

# The distance between replicas' seeds: 2^32 divided by the golden ratio, which avoids patterns.
_APART = 2654435761
_HIGHEST = int(1e9)  # of the seeds that Keras draws
_made = itertools.count()


class Randomness:
    """The random generators of a Keras 3 model; each replica mixes its number into what it draws.

    The first replica draws the same numbers as Keras in one process.
    """

    def __init__(self, model: Any, strategy: tf.distribute.Strategy) -> None:
        keras = keras_of(model)
        self._strategy = strategy
        self._keras = keras
        # Keras draws the seed of its own generator when a layer first needs one.
        self._is_seed_taken = has_unseeded_generator(keras)
        state = random.getstate()
        seed = _seed()
        if self._is_seed_taken:
            seed = random.Random(seed + next(_made)).randint(1, _HIGHEST)
        random.setstate(state)
        with strategy.scope():
            # Keras's own generator belongs to no model, and may have been made in another scope.
            self._unseeded = keras.random.SeedGenerator(seed)
        self.find(model)

    def find(self, model: Any) -> None:
        """Find the generators of a model again, of which some layers make theirs when they are built."""
        generators = [generator for layer in layers_of(model) for generator in seed_generators(layer)]
        self._generators = list(
            {id(generator): generator for generator in [self._unseeded, *generators]}.values()
        )
        self._owned = {id(generator.state) for generator in self._generators}

    @property
    def unseeded(self) -> list[Any]:
        """Return the state that belongs to no layer."""
        return [self._unseeded.state]

    def owns(self, variable: Any) -> bool:
        """Return whether a variable is the state of a generator."""
        return id(variable) in self._owned

    def write(self, variable: Any, value: tf.Tensor) -> None:
        """Write what a step has computed for a variable: a new value, or how far a generator has moved on.

        Asynchronous workers must not set each other's random numbers back.
        """
        write = variable.value.assign_add if self.owns(variable) else variable.value.assign
        write(tf.cast(value, variable.dtype))

    def snapshot(self) -> list[tuple[Any, tf.Tensor]]:
        """Return each state with its value, read once: between two reads another worker may write it."""
        return [(generator.state, tf.identity(generator.state.value)) for generator in self._generators]

    def _take_seed(self) -> None:
        """Draw the seed from `random`, as Keras would, if this is the first draw without a seed.

        Models that a script makes later have the first weights that they have in one process.
        """
        if not self._is_seed_taken:
            self._is_seed_taken = True
            _seed()

    @contextlib.contextmanager
    def drawing(self) -> Iterator[None]:
        """Make each replica draw numbers that no other replica draws.

        Enter this context in cross-replica context: when the replicas meet, TensorFlow runs the next replica
        in between.
        """
        for generator in self._generators:
            generator.next = self._mixing(generator.next, is_unseeded=generator is self._unseeded)
        try:
            yield
        finally:
            for generator in self._generators:
                del generator.next

    def unseeded_from_here(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which a replica uses a generator of its own where no seed is given."""
        return unseeded_generator(self._keras, self._unseeded)  # for this thread, and so for this replica

    def _mixing(self, draw: Callable[..., tf.Tensor], *, is_unseeded: bool) -> Callable[..., tf.Tensor]:
        def mixed(*args: Any, **kwargs: Any) -> tf.Tensor:
            if is_unseeded:
                self._take_seed()
            seed = draw(*args, **kwargs)
            return seed + tf.cast(tf.stack([self._replica() * _APART, 0]), seed.dtype)

        return mixed

    def _replica(self) -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        replica = tf.cast(context.replica_id_in_sync_group, tf.int64)
        if is_asynchronous(self._strategy):
            replica += worker_index() * context.num_replicas_in_sync
        return replica


class GraphSeed:
    """The seed of the graph that is being built, from which TensorFlow's own random operations draw.

    TensorFlow derives the seed of an operation from it and from the operation's place in the graph. If it is
    set, all processes have the same, and would draw the same numbers.
    """

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        """Store the seed that all replicas share, in cross-replica context."""
        self._strategy = strategy
        self._shared = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph().seed

    @contextlib.contextmanager
    def of_this_replica(self) -> Iterator[None]:
        """Set a seed that other replicas do not have, in replica context, within the block."""
        seed: int | None
        if is_asynchronous(self._strategy):
            seed = None  # all workers run this graph, and without a seed each draws its own
        elif self._shared is None:
            seed = None
        else:
            context = tf.distribute.get_replica_context()
            replica = tf.get_static_value(tf.convert_to_tensor(context.replica_id_in_sync_group))
            seed = self._shared + int(replica) * _APART
        with _seeded(seed, self._shared):
            yield

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """Set the shared seed again within the block, in which other replicas may run."""
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        with _seeded(self._shared, None if graph is None else graph.seed):
            yield


def _seed() -> int:
    """Draw a seed as Keras does."""
    return random.randint(1, _HIGHEST)


@contextlib.contextmanager
def _seeded(seed: int | None, after: int | None) -> Iterator[None]:
    if tf.executing_eagerly():
        yield
        return
    graph = tf.compat.v1.get_default_graph()
    graph.seed = seed
    try:
        yield
    finally:
        graph.seed = after
