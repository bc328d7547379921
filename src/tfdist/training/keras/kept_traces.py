"""Keep what calls of `fit`, `evaluate` and `predict` have traced, as Keras keeps `model.train_function`.

Keras traces a model's step again after `compile`, after `make_train_function(force=True)`, and for data of
another structure. It does not trace again where only a layer's `trainable` has changed. Mirrored workers make
the same calls, so they trace together: their collectives are numbered by trace.
"""

import contextlib
from collections.abc import Callable, Hashable, Iterator
from typing import Any, TypeVar

import tensorflow as tf

from tfdist._utils.keras_2_and_3 import keras_of
from tfdist._utils.keras_private import made_by_compile
from tfdist._utils.tf_private import must_be_deterministic

_ATTRIBUTE = "_tfdist_traces"
_FUNCTIONS = ("train_function", "test_function", "predict_function")

_Made = TypeVar("_Made")


class Traces:
    """The steps and functions that calls have made for a model, by what they compute.

    They hold the model, its variables and the strategy, and never data. The model holds them, so they go with
    it. A copy of the model, pickled or not, begins without any.

    Attributes:
        made: The steps and functions.
    """

    def __init__(self) -> None:
        self.made: dict[Hashable, Any] = {}
        self._compiled: list[Any] = []
        self._variables: list[Any] | None = None  # unknown until the first call is over

    def __reduce__(self) -> tuple[type["Traces"], tuple[()]]:
        return Traces, ()

    def get(self, key: Hashable, make: Callable[[], _Made]) -> _Made:
        """Return what was made for a key; make it now if nothing was."""
        if key not in self.made:
            self.made[key] = make()
        return self.made[key]  # type: ignore[no-any-return]

    def keep_only(self, *made: Any) -> None:
        """Forget all but these."""
        kept = set(map(id, made))
        self.made = {key: trace for key, trace in self.made.items() if id(trace) in kept}

    @classmethod
    def of(cls, model: Any) -> "Traces":
        """Return the traces of a model; without any if the model has changed since the last call."""
        keras_of(model)  # raises if it is not a model
        kept: Traces | None = vars(model).get(_ATTRIBUTE)
        if kept is None or not kept._are_of(model):
            kept = vars(model)[_ATTRIBUTE] = cls()
            kept._compiled = _compiled(model)
        return kept

    def _are_of(self, model: Any) -> bool:
        variables = self._variables
        return _are_same(self._compiled, _compiled(model)) and (
            variables is None or _are_same(variables, _variables(model))
        )

    def note_variables(self, model: Any) -> None:
        """Note the variables of a model, of which a call may have made some."""
        self._variables = _variables(model)


@contextlib.contextmanager
def traces_kept(model: Any) -> Iterator[Traces]:
    """Keep the traces of a call for the next call on the same model, unless the call fails."""
    traces = Traces.of(model)
    try:
        yield traces
    except BaseException:
        vars(model).pop(_ATTRIBUTE, None)
        raise
    traces.note_variables(model)


def kinds(batch: Any) -> str:
    """Return the structure of a batch, or of its spec, and the types and ranks of its tensors.

    Lengths may differ: TensorFlow traces a function again for them, and then for all lengths.
    """

    def kind(part: Any) -> Any:
        if not hasattr(part, "dtype"):
            return part
        ragged_rank = getattr(part, "ragged_rank", None)
        return type(part).__name__, tf.as_dtype(part.dtype).name, part.shape.rank, ragged_rank

    return repr(tf.nest.map_structure(kind, batch))


def _compiled(model: Any) -> list[Any]:
    """Return what `compile` makes or sets, and the functions that a user may make Keras make again.

    Also return whether operations must be deterministic, for which other ones are traced.
    """
    names = ("optimizer", "run_eagerly", "jit_compile", *_FUNCTIONS)
    return [made_by_compile(model), must_be_deterministic(), *(getattr(model, name, None) for name in names)]


def _variables(model: Any) -> list[Any]:
    if not getattr(model, "built", False):
        return []  # a model that is not built has no variables yet
    # A step that runs eagerly follows `trainable`.
    return [*model.variables, *(model.trainable_variables if model.run_eagerly else [])]


def _are_same(some: list[Any], others: list[Any]) -> bool:
    return len(some) == len(others) and all(one is other for one, other in zip(some, others, strict=True))
