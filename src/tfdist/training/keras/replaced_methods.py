"""Replace methods of TensorFlow, Keras, and of a user's model, for the time of a block, and restore them."""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from tfdist._utils.attributes_within_block import attributes_set
from tfdist._utils.keras_private import step_counter

# The methods that `optimizer`, `fused_optimizers` and `sharded_variables` replace on an object.
_REPLACED = ("assign_add", "sparse_read", "update_step")

# Objects and the methods that were replaced on them, by the objects' ids.
ReplacedMethods: TypeAlias = dict[int, tuple[Any, dict[str, Any]]]


def methods_restored(model: Any) -> contextlib.AbstractContextManager[None]:
    """Return a context at whose end the methods of a model's optimizer and variables are restored."""
    return _restored(lambda: _owners(model))


@contextlib.contextmanager
def methods_kept(model: Any, kept: ReplacedMethods) -> Iterator[None]:
    """Do so too, and begin the block with the methods that earlier blocks with the same `kept` replaced."""
    before = {id(owner): _replaced(owner) for owner in _with_attributes(_owners(model))}
    with methods_restored(model):
        for owner, methods in kept.values():
            attributes: Any = vars(owner)
            attributes.update({**methods, **_replaced(owner)})  # a method of the user's own comes first
        try:
            yield
        finally:
            for owner in _with_attributes(_owners(model)):
                own = before.get(id(owner), {})
                kept.setdefault(id(owner), (owner, {}))[1].update(
                    {name: method for name, method in _replaced(owner).items() if method is not own.get(name)}
                )


def methods_restored_of(optimizers: Sequence[Any]) -> contextlib.AbstractContextManager[None]:
    """Return a context at whose end the methods of optimizers and their counters are restored."""
    return _restored(lambda: [owner for optimizer in optimizers for owner in _owners_in(optimizer)])


@contextlib.contextmanager
def methods_replaced(methods: Sequence[tuple[Any, str, Callable[..., Any]]]) -> Iterator[None]:
    """Replace methods of objects, or of all objects of a class, within the block; for one thread at a time.

    Args:
        methods: An object or a class, the name of its method, and what to call instead: a function of the
            object's method, the object, and the method's arguments.
    """
    with contextlib.ExitStack() as stack:
        for owner, name, replacement in methods:
            if isinstance(owner, type):
                method = _calling(replacement, getattr(owner, name))
                stack.enter_context(attributes_set(owner, **{name: method}))
            else:
                vars(owner)[name] = functools.partial(replacement, getattr(owner, name), owner)
                stack.callback(vars(owner).pop, name)
        yield


def _calling(replacement: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(owner: Any, *args: Any, **kwargs: Any) -> Any:
        return replacement(functools.partial(original, owner), owner, *args, **kwargs)

    return method


@contextlib.contextmanager
def _restored(owners: Callable[[], list[Any]]) -> Iterator[None]:
    before = {id(owner): _replaced(owner) for owner in _with_attributes(owners())}
    try:
        yield
    finally:
        for owner in _with_attributes(owners()):
            for name in _REPLACED:
                vars(owner).pop(name, None)
            vars(owner).update(before.get(id(owner), {}))


def _replaced(owner: Any) -> dict[str, Any]:
    return {name: vars(owner)[name] for name in _REPLACED if name in vars(owner)}


def _owners(model: Any) -> list[Any]:
    """Return the objects of a model on which methods are replaced."""
    # A model that is not built has no variables yet.
    variables = model.variables if getattr(model, "built", False) else []
    return [*_owners_in(getattr(model, "optimizer", None)), *variables]


def _owners_in(optimizer: Any) -> list[Any]:
    """Return the objects in an optimizer on which methods are replaced."""
    optimizers = [optimizer, getattr(optimizer, "inner_optimizer", None)]
    return [*optimizers, *(step_counter(owner) for owner in optimizers)]


def _with_attributes(owners: list[Any]) -> list[Any]:
    return [owner for owner in owners if hasattr(owner, "__dict__")]


_HERE = threading.local()  # TensorFlow traces each replica in a thread of its own


@contextlib.contextmanager
def replicas_hideable() -> Iterator[None]:
    """Make `replicas_hidden` work within the block; for one thread at a time."""
    kind = tf.distribute.Strategy
    original = kind.num_replicas_in_sync

    def count(strategy: tf.distribute.Strategy) -> int:
        return 1 if getattr(_HERE, "is_hidden", False) else original.fget(strategy)

    with attributes_set(kind, num_replicas_in_sync=property(count, doc=original.__doc__)):
        yield


@contextlib.contextmanager
def replicas_hidden(is_hidden: bool = True) -> Iterator[None]:
    """Make strategies count one replica in this thread, or all of them again, within the block."""
    before = getattr(_HERE, "is_hidden", False)
    _HERE.is_hidden = is_hidden
    try:
        yield
    finally:
        _HERE.is_hidden = before
