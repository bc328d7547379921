"""Reduce the values of slices, which may differ in size, to one value."""

import functools
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Literal, get_args

import tensorflow as tf

from tfdist.errors import ConfigError, did_you_mean, first_line, shown

Operation = Literal["mean", "sum", "min", "max", "concat"]


class Parts(list[Any]):
    """The values of slices, in the slices' order, and the size of each slice.

    The size is the length of the slice's first dimension, 1 for a single number, and None if the leaves of a
    nested slice have different lengths.
    """

    def __init__(self, values: Iterable[Any], sizes: Sequence[int | None]) -> None:
        super().__init__(values)
        self.sizes = tuple(sizes)


def size_of(part: Any) -> int | None:
    """Return the size of a slice, if it has one."""
    sizes = {int(leaf.shape[0]) if len(leaf.shape) else 1 for leaf in tf.nest.flatten(part)}
    return sizes.pop() if len(sizes) == 1 else None


def reduced(op: str, values: Iterable[Any], sizes: Sequence[float] | None) -> Any:
    """Reduce values of one structure, leaf by leaf."""
    if op not in get_args(Operation):
        raise ConfigError(
            "reduce", f"unknown operation {shown(op)}", remedy=did_you_mean(op, get_args(Operation))
        )
    if sizes is not None and op != "mean":
        raise ConfigError("reduce: sizes", f"has no effect with {op}", remedy="Leave it out")
    many = list(values)
    if not many:
        raise ConfigError("reduce", expected="one value or more", received="none")
    if op == "mean":
        weights = _weights(values, len(many), sizes)
        return _by_leaf(many, lambda leaves: _mean(leaves, weights))
    reduce: dict[str, Callable[[list[tf.Tensor]], tf.Tensor]] = {
        "sum": tf.add_n,
        "min": lambda leaves: functools.reduce(tf.minimum, _of_one_shape(leaves)),
        "max": lambda leaves: functools.reduce(tf.maximum, _of_one_shape(leaves)),
        "concat": partial(tf.concat, axis=0),
    }
    return _by_leaf(many, reduce[op])


def _weights(values: Iterable[Any], count: int, sizes: Sequence[float] | None) -> list[float]:
    """Return the share of each value in the mean; together they are 1."""
    if sizes is None:
        sizes = _known_sizes(values)
    if len(sizes) != count or min(sizes) < 0 or not sum(sizes) > 0:
        expected = f"{count} sizes of 0 or more, not all 0"
        raise ConfigError("reduce: sizes", expected=expected, received=shown(list(sizes)))
    total = sum(sizes)
    return [size / total for size in sizes]


def _known_sizes(values: Iterable[Any]) -> list[float]:
    remedy = "Pass sizes=…, or [1, 1, …] for the plain mean"
    if not isinstance(values, Parts):
        raise ConfigError("reduce", "cannot know the sizes of values that map did not return", remedy=remedy)
    for number, size in enumerate(values.sizes):
        if size is None:
            raise ConfigError(f"reduce: slice {number}", "has parts of different lengths", remedy=remedy)
    return [float(size) for size in values.sizes if size is not None]


def _by_leaf(values: Sequence[Any], reduce: Any) -> Any:
    try:
        return tf.nest.map_structure(lambda *leaves: reduce(list(map(tf.convert_to_tensor, leaves))), *values)
    except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
        raise ConfigError("reduce", f"the values cannot be combined: {first_line(error)}") from error


def _of_one_shape(leaves: list[tf.Tensor]) -> list[tf.Tensor]:
    shapes = {tuple(leaf.shape) for leaf in leaves}
    if len(shapes) > 1:  # they would be broadcast
        raise ValueError(f"their shapes differ: {sorted(shapes)}")
    return leaves


def _mean(leaves: Sequence[tf.Tensor], weights: Sequence[float]) -> tf.Tensor:
    if not (leaves[0].dtype.is_floating or leaves[0].dtype.is_complex):
        leaves = [tf.cast(leaf, tf.float64) for leaf in leaves]  # the mean of integers is no integer
    # An empty slice may have the value NaN, which would remain NaN after a multiplication by weight 0.
    counted = [(leaf, weight) for leaf, weight in zip(leaves, weights, strict=True) if weight]
    return tf.add_n([leaf * tf.constant(weight, leaf.dtype) for leaf, weight in counted])
