"""Train models whose large variables are in shards: a layer sees the whole, an optimizer the parts.

Keras 2 gives a model's variables shard by shard. A model of Keras 3 has one variable, and the optimizer gets
one for each shard, to make its slots beside it. What it does has to be the same for parts as for a whole.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdist.errors import ConfigError

__all__ = ["built_on_parts", "check_parts", "parts_of", "put_together", "read_by_rows"]

# Optimizers that take a variable's shape or norm into account.
_OF_WHOLES = ("Adafactor", "Lamb", "Muon")


def parts_of(variables: Sequence[Any]) -> list[Any]:
    """Give the variables, and for each that is in shards a variable of Keras for each shard."""
    return [part for each in variables for part in _parts(each)]


def put_together(values: Sequence[tf.Tensor]) -> tf.Tensor:
    """Give a variable's value from those of its parts."""
    return values[0] if len(values) == 1 else tf.concat(values, axis=0)


def _parts(variable: Any) -> list[Any]:
    shards = getattr(variable, "value", None)
    if not isinstance(shards, tf.__internal__.distribute.ShardedVariable):
        return [variable]
    known = getattr(variable, "_tfdist_parts", None)
    if known is None:
        known = [
            type(variable)(shard, trainable=variable.trainable, name=f"{variable.name}_part_{index}")
            for index, shard in enumerate(shards.variables)
        ]
        variable._tfdist_parts = known
    return list(known)


@contextlib.contextmanager
def built_on_parts(optimizer: Any) -> Iterator[None]:
    """Let an optimizer that Keras builds make its slots for the parts, which Keras 2 does of itself."""
    if optimizer is None or getattr(optimizer, "built", True):
        yield
        return
    build: Callable[[Any], None] = optimizer.build
    optimizer.build = lambda variables: build(parts_of(variables))
    try:
        yield
    finally:
        del optimizer.build


def read_by_rows(variables: Sequence[Any]) -> None:
    """Let `tf.gather` read the rows that it needs from where they are.

    It does so for what has a `sparse_read`, as TensorFlow's variables have; those of Keras 3 have none, and a
    whole embedding would be sent to each worker in each step, or copied.
    """
    for each in variables:
        each.sparse_read = functools.partial(_rows, each)


def _rows(variable: Any, indices: Any, name: str | None = None) -> Any:
    """Read rows of a variable of Keras 3, and let it cast these, where it would cast the whole first."""
    is_cast = getattr(variable, "_autocast", True)  # the first ones of Keras 3 have none
    variable._autocast = False
    try:
        whole = variable.value
    finally:
        variable._autocast = is_cast
    if isinstance(whole, tf.distribute.DistributedValues):
        whole = whole._get()  # of what is mirrored, a replica's own copy alone can be read by rows
    return variable._maybe_autocast(tf.gather(whole, indices, name=name))


def check_parts(model: Any) -> None:
    """Refuse what would be another thing for each shard than for the whole variable."""
    # Keras 2 gives a model's variables part by part.
    cut = [
        each
        for each in model.trainable_variables
        if hasattr(each, "_sharded_container") or len(_parts(each)) > 1
    ]
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    if not cut or optimizer is None:
        return
    remedy = "Leave out min_shard_bytes and max_shards, or it"
    kinds = {each.__name__ for each in type(optimizer).__mro__}
    for what, is_used in (
        (f"the optimizer {type(optimizer).__name__}", bool(kinds & set(_OF_WHOLES))),
        ("clipnorm", bool(getattr(optimizer, "clipnorm", None))),
        ("a constraint", any(each.constraint is not None for each in cut)),
        ("exclude_from_weight_decay", bool(getattr(optimizer, "_exclude_from_weight_decay", None))),
    ):
        if is_used:
            problem = f"has variables in shards, and {what} would be another thing for each shard"
            raise ConfigError(f"model {model.name}", problem, remedy=remedy)
