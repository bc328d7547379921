"""Data of which each asynchronous worker reads its own part."""

import functools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdist._utils.tf_private import (
    create_on_workers,
    dispatched_worker,
    is_reshuffled,
    iterators_on_workers,
    repetitions,
    serialized,
)
from tfdist.errors import DataError
from tfdist.training.data.check_caches import check_caches
from tfdist.training.data.data_part_progress import NO_PART, PartsOfData
from tfdist.training.data.dataset_workarounds import untuned
from tfdist.training.data.inspect_dataset import (
    chain_of,
    check_order,
    contains_python,
    depends_on_earlier_passes,
    is_too_large_to_send,
)

_NUMBER = tf.TensorSpec([], tf.int64)
# All workers get the graph of a function, with the arrays of all parts.
_MOST_BYTES_IN_A_GRAPH = 1 << 20
_VARIANT = tf.TensorSpec([], tf.variant)
# How often a user's shuffle has begun, in all calls together: another call continues with other orders.
_BEGUN: weakref.WeakKeyDictionary[tf.data.Dataset, int] = weakref.WeakKeyDictionary()


class WorkersData:
    """A data set, or what a function makes, of which each worker reads a part.

    TensorFlow gives all workers the same data set and the same input context, and makes the data set again
    for each pass. Here each worker gets a part of its own, which the chief names whenever it opens the data
    there. It keeps its data set, as one process does: a shuffle draws another order in each pass, and a cache
    is filled once. A worker that comes back begins its new data set as often as the others theirs.

    Attributes:
        element_spec: The spec of what one device gets.
        is_endless: Whether the data never end.
    """

    def __init__(
        self,
        data: tf.data.Dataset | Callable[[tf.distribute.InputContext], tf.data.Dataset],
        strategy: tf.distribute.Strategy,
        coordinator: Any,
        workers: int,
    ) -> None:
        """Make the graph of a data set, or of a function that makes one part."""
        self._coordinator, self._replicas = coordinator, strategy.num_replicas_in_sync
        is_set = isinstance(data, tf.data.Dataset)
        make = _of_dataset if is_set else _of_function
        self._graphs = make(data, strategy, workers)
        self.element_spec, self.is_endless = self._graphs.element_spec, self._graphs.is_endless
        # To read what earlier calls have read would take too long.
        parts = chain_of(data) if is_set and not self._graphs.reads else ()
        self._shuffles = [part for part in parts if is_reshuffled(part)]
        self._earlier = self._passes = max((_BEGUN.get(part, 0) for part in self._shuffles), default=0)
        self._kept = create_on_workers(coordinator, _Kept)

    def resume(self, passes: int) -> None:
        """Continue after a number of passes that an earlier process has begun."""
        self._note_passes(self._earlier + passes)

    def begin(self, parts: PartsOfData) -> Any:
        """Begin a pass; return an iterator over the batches of these parts that are left."""
        self._note_passes(self._passes + 1)
        return self.continue_pass(parts)

    def continue_pass(self, parts: PartsOfData) -> Any:
        """Return an iterator over what is left in this pass, when workers have got other parts."""
        opened = functools.partial(self._opened, parts, self._passes)
        return iterators_on_workers(
            self._coordinator, opened, self._kept, self._graphs.rest.structured_outputs
        )

    def _note_passes(self, number: int) -> None:
        self._passes = number
        for part in self._shuffles:
            _BEGUN[part] = max(number, _BEGUN.get(part, 0))

    def _opened(self, parts: PartsOfData, number: int, kept: "_Kept") -> Any:
        """Return an iterator of the worker whose thread this is, in the pass of a number."""
        part, skip = parts.for_iterator(dispatched_worker())
        place = tf.constant(part, tf.int64), tf.constant(skip * self._replicas, tf.int64)
        try:
            if part != NO_PART:
                self._prepare(kept, part, number)
                kept.begun += 1
            elif kept.dataset is None:
                self._remake(kept, 0)
            return iter(self._graphs.rest(kept.dataset, *place))
        except BaseException:
            kept.dataset = None  # it may have begun once more, or not
            raise

    def _prepare(self, kept: "_Kept", part: int, number: int) -> None:
        """Bring the data set of a worker to the beginning of a pass."""
        is_other = kept.part != part and self._graphs.is_of_parts
        if kept.dataset is None or is_other or kept.begun >= number:
            self._remake(kept, part)
        while kept.begun < number - 1:
            self._graphs.leave_out(kept.dataset)
            kept.begun += 1

    def _remake(self, kept: "_Kept", part: int) -> None:
        kept.dataset, kept.part, kept.begun = self._graphs.make(part), part, 0


@dataclass
class _Kept:
    """What a worker keeps: a data set as a variant there, of which part it is, and how often it has begun."""

    dataset: Any = None
    part: int = 0
    begun: int = 0


@dataclass(frozen=True)
class _Graphs:
    """The graphs that a worker runs to read its part.

    Attributes:
        element_spec: The spec of what one device gets.
        is_endless: Whether the data never end.
        is_of_parts: Whether `make` makes another data set for each part.
        reads: Whether the order of a pass depends on what was read in earlier ones.
        make: Makes the data set on a worker, for the number of a part, and returns its variant.
        leave_out: Begins this variant, and reads it whole if it `reads`.
        rest: Returns what is left for an iterator: of the variant, a part, less than 0 for none, and a number
            of batches to skip.
    """

    element_spec: Any
    is_endless: bool
    is_of_parts: bool
    reads: bool
    make: Any
    leave_out: Any
    rest: Any

    @classmethod
    def of(
        cls,
        make: Callable[[int], tf.Tensor],
        example: tf.data.Dataset,
        strategy: tf.distribute.Strategy,
        shards: int,
    ) -> "_Graphs":
        """Trace the graphs; each worker takes one of some shards of what `make` returns."""
        spec, options = example.element_spec, example.options()
        is_endless = int(example.cardinality()) == tf.data.INFINITE_CARDINALITY
        repeats = (tf.get_static_value(repetitions(part)) for part in chain_of(example))
        is_endless_inside = any(count is not None and count < 0 for count in repeats)
        reads = not (is_endless or is_endless_inside) and depends_on_earlier_passes(example)

        def leave_out(variant: tf.Tensor) -> tf.Tensor:
            whole, zero = tf.data.experimental.from_variant(variant, spec), tf.constant(0, tf.int64)
            whole = whole.with_options(options)
            if reads:
                return whole.reduce(zero, lambda count, *_: count + 1)
            iter(whole)
            return zero

        def rest(variant: tf.Tensor, part: tf.Tensor, skip: tf.Tensor) -> tf.data.Dataset:
            everything, nothing = tf.constant(-1, tf.int64), tf.constant(0, tf.int64)
            own = tf.data.experimental.from_variant(variant, spec).shard(shards, tf.maximum(part, 0) % shards)
            return own.take(tf.where(part < 0, nothing, everything)).skip(skip).with_options(options)

        def distributed_rest(*place: tf.Tensor) -> Any:
            return strategy.distribute_datasets_from_function(lambda _: rest(*place))

        # Distributing to one device would add threads and buffers.
        read = rest if strategy.num_replicas_in_sync == 1 else distributed_rest
        return cls(
            spec,
            is_endless,
            shards == 1,
            reads,
            make,
            _traced(leave_out, _VARIANT),
            _traced(read, _VARIANT, _NUMBER, _NUMBER),
        )


def _of_function(make: Any, strategy: tf.distribute.Strategy, workers: int) -> _Graphs:
    contexts = _contexts(strategy, workers)
    first = make(contexts[0])
    if contains_python(first):
        problem = "makes a data set that contains Python code, which exists in this process only"
        remedy = "Pass the data set itself, which the chief reads then, or use operations of TensorFlow"
        raise DataError("the data function", problem, remedy=remedy)
    if _needs_graphs_of_parts(lambda: make(contexts[0])):
        parts = [first, *map(make, contexts[1:])]
        if any(map(is_too_large_to_send, parts)):
            problem = "makes parts that contain more than 2 GB of arrays, which TensorFlow cannot send"
            remedy = "Read them from files, as of tf.data.TFRecordDataset"
            raise DataError("the data function", problem, remedy=remedy)
        return _of_parts(parts, strategy)

    def make_part(part: tf.Tensor) -> tf.Tensor:
        # All workers run the same graph, and the user's function may need the index as a Python number
        # (to slice a list of files). So the graph contains every part's data set, and makes one of them.
        makers = [lambda context=each: tf.data.experimental.to_variant(make(context)) for each in contexts]
        return tf.switch_case(tf.cast(part, tf.int32), makers)

    traced = _traced(make_part, _NUMBER)
    return _Graphs.of(lambda part: traced(tf.constant(part, tf.int64)), first, strategy, 1)


def _contexts(strategy: tf.distribute.Strategy, workers: int) -> list[tf.distribute.InputContext]:
    """Return the input context of each part; in step are the devices of one worker."""
    replicas = strategy.num_replicas_in_sync
    return [tf.distribute.InputContext(workers, index, replicas) for index in range(workers)]


def _of_parts(parts: Sequence[tf.data.Dataset], strategy: tf.distribute.Strategy) -> _Graphs:
    """Return the graphs for several data sets, each of which is sent to the worker that reads it."""
    parts = [untuned(part) for part in parts]
    graphs, from_graph = [serialized(part) for part in parts], _from_graph()
    return _Graphs.of(lambda part: from_graph(graphs[part]), parts[0], strategy, 1)


def _of_dataset(dataset: tf.data.Dataset, strategy: tf.distribute.Strategy, workers: int) -> _Graphs:
    if workers > 1:
        check_order(dataset)
        check_caches(dataset, strategy)
    dataset = untuned(dataset)
    # A data set exists only in the process that made it, but its graph can be sent.
    graph, from_graph = serialized(dataset), _from_graph()
    return _Graphs.of(lambda _: from_graph(graph), dataset, strategy, workers)


def _from_graph() -> Any:
    """Return the trace of what makes a data set from its graph.

    The workers get the graph as an argument: TensorFlow would copy a constant with every function, and build
    it during optimization.
    """

    def made(graph: tf.Tensor) -> tf.Tensor:
        return tf.raw_ops.DatasetFromGraph(graph_def=graph)

    return _traced(made, tf.TensorSpec([], tf.string))


def _needs_graphs_of_parts(make: Callable[[], tf.data.Dataset]) -> bool:
    """Return whether a worker must get the graph of a data set, and not that of the function that makes it.

    The function takes data sets from outside, which TensorFlow cannot send, or its graph contains arrays.
    """
    function = tf.function(lambda: tf.data.experimental.to_variant(make()), autograph=False)
    try:
        traced = function.get_concrete_function()
        if any(tensor.dtype == tf.variant for tensor in traced.captured_inputs):
            return True
        held = [*traced.captured_inputs, *_constants_of(traced.graph)]
        if sum(map(_bytes_of, held)) > _MOST_BYTES_IN_A_GRAPH:
            return True
        return bool(traced.graph.as_graph_def().ByteSize() > _MOST_BYTES_IN_A_GRAPH)
    except tf.errors.OperatorNotAllowedInGraphError:  # a user's function has a tensor in an `if`
        return False
    except ValueError:  # an array of more than 2 GB
        return True


def _constants_of(graph: Any) -> list[tf.Tensor]:
    """Return the constants of a graph, without those of functions that it calls."""
    return [each.outputs[0] for each in graph.get_operations() if each.type == "Const"]


def _bytes_of(tensor: tf.Tensor) -> int:
    return int(tensor.dtype.size * (tensor.shape.num_elements() or 0))


def _traced(function: Callable[..., Any], *signature: tf.TensorSpec) -> Any:
    """Return the trace of a function that workers run."""

    def refuse_variables(*_: Any, **__: Any) -> Any:
        raise ValueError("Creating variables in a data function is not allowed.")

    with tf.variable_creator_scope(refuse_variables):
        try:
            # AutoGraph would rewrite all that the function calls, which takes most of a second.
            return tf.function(function, autograph=False).get_concrete_function(*signature)
        except tf.errors.OperatorNotAllowedInGraphError:  # a user's function has a tensor in an `if`
            return tf.function(function).get_concrete_function(*signature)
