"""Data of which each asynchronous worker reads its own part."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist._utils.tf_private import serialized
from tfdist.training.data.dataset_workarounds import untuned
from tfdist.training.data.inspect_dataset import check_order
from tfdist.training.data.parts_of_data import PartsOfData
from tfdist.training.parameter_servers.worker_values_in_graph import value_for_worker


class WorkersData:
    """A data set, or what a function makes, of which each worker reads a part.

    TensorFlow gives all workers the same data set and the same input context. Here each worker gets a part of
    its own, which the chief names whenever it sends the graph of the data to the worker.

    Attributes:
        element_spec: The spec of what one device gets.
    """

    def __init__(
        self,
        data: tf.data.Dataset | Callable[[tf.distribute.InputContext], tf.data.Dataset],
        strategy: tf.distribute.Strategy,
        coordinator: Any,
        workers: int,
    ) -> None:
        """Make the graph of a data set, or of a function that makes one part."""
        self._parts: Any = None  # until `begin`
        self._replicas = strategy.num_replicas_in_sync
        make = self._part_of_dataset if isinstance(data, tf.data.Dataset) else self._part_of_function
        make_own, self.element_spec = make(data, workers)
        if self._replicas > 1:  # otherwise this call adds threads and buffers
            make_own_part = make_own
            make_own = lambda: strategy.distribute_datasets_from_function(lambda _: make_own_part())  # noqa: E731
        self._dataset = _per_worker(make_own, coordinator)

    def begin(self, parts: PartsOfData) -> Any:
        """Return an iterator over the batches of these parts that are left."""
        self._parts = parts
        return iter(self._dataset)

    def _part_of_function(self, make: Any, workers: int) -> tuple[Callable[[], tf.data.Dataset], Any]:
        contexts = [tf.distribute.InputContext(workers, index, 1) for index in range(workers)]
        first = make(contexts[0])
        if _captures_datasets(lambda: make(contexts[0])):
            return self._part_of_graphs([first, *map(make, contexts[1:])])
        spec, options = first.element_spec, first.options()

        def make_own() -> tf.data.Dataset:
            # All workers run the same graph, and the user's function may need the index as a Python number
            # (to slice a list of files). So the graph contains every part's data set, and makes one of them.
            part, skip = self._part_and_skip()
            makers = [
                lambda context=each: tf.data.experimental.to_variant(make(context)) for each in contexts
            ]
            variant = tf.switch_case(tf.cast(tf.maximum(part, 0), tf.int32), makers)
            own = tf.data.experimental.from_variant(variant, spec)
            return _rest(own, part, skip).with_options(options)

        return make_own, spec

    def _part_of_graphs(self, parts: list[tf.data.Dataset]) -> tuple[Callable[[], tf.data.Dataset], Any]:
        """Make one of several data sets, which exist in this process only, from its graph."""
        parts = [untuned(part) for part in parts]
        spec, options = parts[0].element_spec, parts[0].options()
        graphs = tf.stack([serialized(part) for part in parts])

        def make_own() -> tf.data.Dataset:
            part, skip = self._part_and_skip()
            variant = tf.raw_ops.DatasetFromGraph(graph_def=tf.gather(graphs, tf.maximum(part, 0)))
            return _rest(tf.data.experimental.from_variant(variant, spec), part, skip).with_options(options)

        return make_own, spec

    def _part_of_dataset(
        self, dataset: tf.data.Dataset, workers: int
    ) -> tuple[Callable[[], tf.data.Dataset], Any]:
        if workers > 1:
            check_order(dataset)
        dataset = untuned(dataset)
        spec, options = dataset.element_spec, dataset.options()
        # A data set exists only in the process that made it, but its graph can be sent. The workers get the
        # graph as an argument: TensorFlow would copy a constant with every function, and build it during
        # optimization.
        graph = serialized(dataset)

        def make_own() -> tf.data.Dataset:
            part, skip = self._part_and_skip()
            variant = tf.raw_ops.DatasetFromGraph(graph_def=graph)
            whole = tf.data.experimental.from_variant(variant, spec)
            return _rest(whole.shard(workers, tf.maximum(part, 0)), part, skip).with_options(options)

        return make_own, spec

    def _part_and_skip(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Return, in a graph, the part to read, less than 0 for none, and how many batches to leave out."""

        def of_worker(worker: int) -> Any:
            part, skip = self._parts.for_iterator(worker)
            return np.array([part, skip * self._replicas], np.int64)

        part, skip = tf.unstack(value_for_worker(of_worker, "part_and_batches_to_skip", [2]))
        return part, skip


def _rest(own: tf.data.Dataset, part: tf.Tensor, skip: tf.Tensor) -> tf.data.Dataset:
    """Return, in a graph, what is left of a part."""
    everything, nothing = tf.constant(-1, tf.int64), tf.constant(0, tf.int64)
    return own.take(tf.where(part < 0, nothing, everything)).skip(skip)


def _captures_datasets(make: Callable[[], tf.data.Dataset]) -> bool:
    """Return whether a function takes data sets from outside, which TensorFlow cannot send to a worker."""
    try:
        traced = tf.function(lambda: tf.data.experimental.to_variant(make()), autograph=False)
        captured = traced.get_concrete_function().captured_inputs
    except tf.errors.OperatorNotAllowedInGraphError:  # a user's function has a tensor in an `if`
        return False
    return any(tensor.dtype == tf.variant for tensor in captured)


def _per_worker(make: Callable[[], Any], coordinator: Any) -> Any:
    """Return the data set that each worker makes by a function."""
    try:
        # With AutoGraph, TensorFlow would rewrite all that the function calls, which takes most of a second.
        return coordinator.create_per_worker_dataset(tf.function(make, autograph=False))
    except tf.errors.OperatorNotAllowedInGraphError:  # a user's function has a tensor in an `if`
        return coordinator.create_per_worker_dataset(make)
