"""Train models with sharded variables: a layer uses the whole variable, an optimizer its parts.

Keras 2 lists a model's variables shard by shard. A Keras 3 model has one variable, and tfdist gives the
optimizer one for each shard, so that the slots are beside the shards. The optimizer must compute the same for
the parts as for the whole.
"""

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdist._utils.keras_2_and_3 import is_keras_2, keras_of, trained_variables
from tfdist._utils.keras_private import (
    cast_as_layers_do,
    excludes_from_decay,
    kernels_read_before_xla,
    uncast_value,
    updated_by,
)
from tfdist._utils.nested_optimizers import optimizers_within, without_loss_scale
from tfdist._utils.temporary_patches import attributes_set
from tfdist._utils.tf_private import ShardedVariable, is_shard, local_value
from tfdist.errors import ConfigError

# The parts of each sharded variable, by its id. They are kept, since an optimizer tells them by identity.
_PARTS: dict[int, list[Any]] = {}
# The part that an optimizer's slot belongs to, by the slot's id.
_PART_OF_SLOT: dict[int, Any] = {}
# Optimizers whose update depends on a variable's shape or norm, or that go by its name.
_OF_WHOLES = ("Adafactor", "Lamb", "Muon", "MultiOptimizer")


def parts_of(variables: Sequence[Any]) -> list[Any]:
    """Return the variables, and in the place of each sharded one a Keras variable for each shard."""
    return [part for variable in variables for part in _parts(variable)]


def put_together(values: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return a variable's value from those of its parts."""
    return values[0] if len(values) == 1 else tf.concat(values, axis=0)


def _parts(variable: Any) -> list[Any]:
    shards = getattr(variable, "value", None)
    if not isinstance(shards, ShardedVariable):
        return [variable]
    known = _PARTS.get(id(variable))
    if known is None:
        known = [
            type(variable)(shard, trainable=variable.trainable, name=f"{variable.name}_part_{index}")
            for index, shard in enumerate(shards.variables)
        ]
        _PARTS[id(variable)] = known
        weakref.finalize(variable, _PARTS.pop, id(variable), None)
    return list(known)


@contextlib.contextmanager
def built_on_parts(optimizer: Any) -> Iterator[None]:
    """Make an optimizer that Keras builds create its slots for the parts; Keras 2 does so by itself."""
    if optimizer is None or getattr(optimizer, "built", True):
        yield
        return
    build: Callable[[Any], None] = optimizer.build
    with contextlib.ExitStack() as stack:
        stack.enter_context(attributes_set(optimizer, build=lambda variables: build(parts_of(variables))))
        for each in (optimizer, *optimizers_within(optimizer)):
            if hasattr(each, "add_variable_from_reference"):  # of Keras 3
                add = _noting_parts(each.add_variable_from_reference)
                stack.enter_context(attributes_set(each, add_variable_from_reference=add))
        yield


def _noting_parts(add: Callable[..., Any]) -> Callable[..., Any]:
    """Return an optimizer's method that makes a slot beside a variable, which notes this variable."""

    def add_noted(reference_variable: Any, *args: Any, **kwargs: Any) -> Any:
        slot = add(reference_variable, *args, **kwargs)
        _PART_OF_SLOT[id(slot)] = reference_variable
        weakref.finalize(slot, _PART_OF_SLOT.pop, id(slot), None)
        return slot

    return add_noted


def slots_of_whole_variables(variables: Sequence[Any]) -> list[list[Any]]:
    """Return an optimizer's variables, those together that are the slots of one variable's parts.

    The lists are in the order in which the slots of whole variables would be.
    """
    number = {id(part): count for parts in _PARTS.values() for count, part in enumerate(parts)}
    first: dict[int, Any] = {id(part): parts[0] for parts in _PARTS.values() for part in parts}
    lists: list[list[Any]] = []
    open_lists: dict[int, list[list[Any]]] = {}
    for variable in variables:
        part = _PART_OF_SLOT.get(id(variable))
        whole = None if part is None else first.get(id(part))
        if whole is None:
            lists.append([variable])
            continue
        # A variable has several slots: the n-th of its second part belongs to the n-th of its first.
        begun = open_lists.setdefault(id(whole), [])
        slots = next((each for each in begun if len(each) == number[id(part)]), None)
        if slots is None:
            begun.append(slots := [])
            lists.append(slots)
        slots.append(variable)
    return lists


@contextlib.contextmanager
def variables_read_in_place(model: Any) -> Iterator[None]:
    """Make a Keras 3 model read its variables where they are, and no more than it needs, within the block.

    `tf.gather` reads only rows of an object with a `sparse_read`, such as TensorFlow's variables. Those of
    Keras 3 have none: each step would send a whole embedding to each worker, or copy it.
    """
    if is_keras_2(model):
        yield
        return
    with contextlib.ExitStack() as stack:
        stack.enter_context(kernels_read_before_xla(keras_of(model)))
        for variable in model.variables:
            stack.enter_context(attributes_set(variable, sparse_read=functools.partial(_rows, variable)))
        yield


def _rows(variable: Any, indices: Any, name: str | None = None) -> Any:
    """Return rows of a Keras 3 variable, and cast only these; Keras would cast the whole variable first."""
    return cast_as_layers_do(variable, read_rows(uncast_value(variable), indices, name=name))


def read_rows(variable: Any, indices: Any, *, name: str | None = None) -> Any:
    """Return rows of one of TensorFlow's variables; of a mirrored one, those on this device."""
    if isinstance(variable, tf.distribute.DistributedValues):
        variable = local_value(variable)  # only this value supports reading by rows
    return tf.gather(variable, indices, name=name)


def check_parts(model: Any) -> None:
    """Refuse options that compute something else for each shard than for the whole variable."""
    # Keras 2 lists a model's variables part by part.
    cut = [
        variable for variable in trained_variables(model) if is_shard(variable) or len(_parts(variable)) > 1
    ]
    optimizer = without_loss_scale(model.optimizer)
    if not cut or optimizer is None:
        return
    remedy = "Leave out min_shard_bytes and max_shards, or use something else"
    if any(len(_parts(variable)) > 1 for variable in cut) and _is_of_wholes(optimizer):
        problem = "has updated whole variables in a loop of your own, and fit updates their shards"
        raise ConfigError(f"optimizer {type(optimizer).__name__}", problem, remedy="Compile with a new one")
    optimizers = [optimizer, *optimizers_within(optimizer)]
    kinds = {base.__name__ for each in optimizers for base in type(each).__mro__}
    for what, is_used in (
        (f"the optimizer {type(optimizer).__name__}", bool(kinds & set(_OF_WHOLES))),
        ("clipnorm", any(getattr(each, "clipnorm", None) for each in optimizers)),
        ("a constraint", any(variable.constraint is not None for variable in cut)),
        ("exclude_from_weight_decay", any(map(excludes_from_decay, optimizers))),
    ):
        if is_used:
            problem = f"has variables in shards, and {what} would compute something else for each shard"
            raise ConfigError(f"model {model.name}", problem, remedy=remedy)


def _is_of_wholes(optimizer: Any) -> bool:
    """Return whether an optimizer of Keras 3 was built for variables in shards, and not for their parts."""
    return any(len(_parts(variable)) > 1 for variable in updated_by(optimizer))
