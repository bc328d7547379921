"""Begin a distributed data set, as often as wanted, at the cost of beginning it once.

TensorFlow fetches a device's batches by a data set of its own, which calls functions in the process that has
the data. With every iterator it traces them anew, six for each device, and keeps some 25 kB of them for ever:
a run that evaluates often would grow. Nothing in them is of one iterator alone, so here they are traced once.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops, multi_device_iterator_ops, prefetch_op
from tensorflow.python.data.util import structure
from tensorflow.python.eager import context
from tensorflow.python.ops import functional_ops, gen_dataset_ops

from tfdist.loop.untuned import untuned

__all__ = ["Beginnings"]

_TEXT, _NUMBER, _RESOURCE = (tf.TensorSpec([], each) for each in (tf.string, tf.int64, tf.resource))


class Beginnings:
    """Make iterators of distributed data sets, which share their functions; none of them is tuned."""

    def __init__(self) -> None:
        self._known: dict[Any, _Functions] = {}

    def begin(self, dataset: Any) -> Any:
        """Make an iterator of a distributed data set."""
        with self._in_place():
            return iter(dataset)

    @contextlib.contextmanager
    def _in_place(self) -> Iterator[None]:
        """Have TensorFlow take what is made here for a device's data, which has no options of its own."""
        module = multi_device_iterator_ops
        theirs, put = module._PerDeviceGenerator, module._create_device_dataset

        def fetched(
            shard: int, resource: Any, incarnation: Any, source: Any, spec: Any, iterator_is_anonymous: bool
        ) -> Any:
            # In a graph there is one iterator for each trace. What a GPU's functions need, TensorFlow knows.
            if not (tf.executing_eagerly() and iterator_is_anonymous and ":CPU:" in _current_device()):
                return theirs(shard, resource, incarnation, source, spec, iterator_is_anonymous)
            return _Fetched(self._functions(shard, source.numpy(), spec), resource, incarnation, spec)

        def on_device(data: Any, incarnation: Any, size: int, has_slack: bool) -> Any:
            if not isinstance(data, _Fetched):
                data = put(data, incarnation, size, has_slack)
            elif size:
                data = prefetch_op._PrefetchDataset(data, size, slack_period=1 if has_slack else None)
            return untuned(data)

        module._PerDeviceGenerator, module._create_device_dataset = fetched, on_device
        try:
            yield
        finally:
            module._PerDeviceGenerator, module._create_device_dataset = theirs, put

    def _functions(self, shard: int, source: bytes, spec: Any) -> "_Functions":
        types = tuple(structure.get_flat_tensor_types(spec))
        shapes = tuple(structure.get_flat_tensor_shapes(spec))
        key = _current_device(), shard, source, types, str(shapes)
        if key not in self._known:
            self._known[key] = _Functions.of(shard, source, types, shapes)
        return self._known[key]


class _Functions(NamedTuple):
    """Hold what a device's data set calls: first, for each element, and at last."""

    first: Any
    each: Any
    last: Any

    @classmethod
    def of(cls, shard: int, source: bytes, types: tuple[Any, ...], shapes: tuple[Any, ...]) -> "_Functions":
        """Trace them for the current device."""
        elements: dict[str, Any] = {"output_types": types, "output_shapes": shapes}

        def at_the_source(iterator: tf.Tensor, incarnation: tf.Tensor) -> Any:
            found = tf.raw_ops.MultiDeviceIteratorFromStringHandle(string_handle=iterator, **elements)
            return tf.raw_ops.MultiDeviceIteratorGetNextFromShard(
                multi_device_iterator=found, shard_num=shard, incarnation_id=incarnation, **elements
            )

        called = _traced(at_the_source, _TEXT, _NUMBER)

        def each(iterator: tf.Tensor, incarnation: tf.Tensor, kept: tf.Tensor) -> Any:
            return functional_ops.remote_call(
                target=source, args=[iterator, incarnation], Tout=list(types), f=called
            )

        return cls(
            _traced(lambda iterator: iterator, _TEXT),
            _traced(each, _TEXT, _NUMBER, _RESOURCE),
            _traced(lambda iterator: tf.constant(0, tf.int64), _TEXT),
        )


class _Fetched(dataset_ops.DatasetV2):  # type: ignore[misc]  # TensorFlow ships no types
    """Be the data set of one device: what an iterator in another place holds for it."""

    def __init__(self, functions: _Functions, resource: Any, incarnation: Any, spec: Any) -> None:
        self._spec = spec
        name = tf.raw_ops.MultiDeviceIteratorToStringHandle(multi_device_iterator=resource)
        variant = gen_dataset_ops.generator_dataset(
            [name],
            [incarnation, resource],  # the second lives as long as this needs it
            [],
            init_func=functions.first,
            next_func=functions.each,
            finalize_func=functions.last,
            **self._flat_structure,
        )
        super().__init__(variant)

    def _inputs(self) -> list[Any]:
        return []

    @property
    def element_spec(self) -> Any:
        """Say what it is made of."""
        return self._spec


def _traced(function: Callable[..., Any], *signature: tf.TensorSpec) -> Any:
    return tf.function(function, input_signature=signature, autograph=False).get_concrete_function()


def _current_device() -> str:
    return str(context.context().device_name)
