"""Say what the losses of a replica were divided by, so that they make the loss of the whole batch.

Keras 3 keeps that to itself, and divides some losses by the number of replicas too. Its two functions that do
so are therefore replaced while a step is traced.
"""

import contextlib
import importlib
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import tensorflow as tf

from tfdist.errors import ConfigError

__all__ = ["losses_of_one_process", "recorded_divisors", "weight_of"]

_REPLACING = threading.RLock()
_HERE = threading.local()  # each replica is traced in a thread of its own

Divisor = tuple[str, tf.Tensor | None]


@contextlib.contextmanager
def losses_of_one_process(keras: ModuleType) -> Iterator[None]:
    """Let Keras 3 compute the losses of a replica as if it were alone, and record what they are divided by.

    It divides its own losses by the number of replicas, in the precision of a float32, but not those that a
    model computes for itself; and multiplies all of them with it for the logs.
    """
    module = importlib.import_module(f"{keras.__name__}.src.losses.loss")
    names = ("scale_loss_for_distribution", "unscale_loss_for_distribution", "reduce_weighted_values")
    with _REPLACING:
        kept = {name: getattr(module, name) for name in names if hasattr(module, name)}
        for name in kept:
            setattr(module, name, lambda value: value)
        setattr(module, names[-1], _recording(module, kept[names[-1]]))
        try:
            yield
        finally:
            for name, function in kept.items():
                setattr(module, name, function)


@contextlib.contextmanager
def recorded_divisors() -> Iterator[list[Divisor]]:
    """Collect what each loss that this thread computes is divided by, within `losses_of_one_process`."""
    _HERE.divisors = []
    try:
        yield _HERE.divisors
    finally:
        del _HERE.divisors


def weight_of(divisors: list[Divisor], size: tf.Tensor) -> tuple[tf.Tensor | None, bool]:
    """Give the number that the sum of some losses counts by, None for sums; and whether it is of examples."""
    kinds = {kind for kind, _ in divisors}
    if kinds == {"sum"}:
        return None, False
    if kinds <= {"count"}:
        return size, True
    if len(divisors) == 1:
        return divisors[0][1], False
    problem = "of several outputs are divided by different numbers, such as what is masked in each"
    remedy = "Several replicas can share them with reduction='sum' for all; or train in one process"
    raise ConfigError("losses", problem, remedy=remedy)


def _recording(module: Any, reduce: Callable[..., Any]) -> Callable[..., Any]:
    def reduce_weighted_values(
        values: Any,
        sample_weight: Any = None,
        mask: Any = None,
        reduction: str | None = "sum_over_batch_size",
        dtype: Any = None,
    ) -> Any:
        if hasattr(_HERE, "divisors"):
            _HERE.divisors.append(_divisor(module, values, sample_weight, mask, reduction))
        return reduce(values, sample_weight=sample_weight, mask=mask, reduction=reduction, dtype=dtype)

    return reduce_weighted_values


def _divisor(module: Any, values: Any, sample_weight: Any, mask: Any, reduction: str | None) -> Divisor:
    """Do the sums of Keras's own function once more, for what it divides by."""
    if reduction == "sum":
        return "sum", None
    is_weighted = reduction == "mean_with_sample_weight" and sample_weight is not None
    if is_weighted or (reduction == "mean_with_sample_weight" and mask is not None):
        weights = module.apply_mask(sample_weight, mask, dtype=values.dtype, reduction=reduction)
        return "weights", tf.reduce_sum(tf.convert_to_tensor(weights))
    if mask is not None and values.shape.rank:
        known = tf.math.count_nonzero(mask, dtype=tf.float64)
        share = known / tf.cast(tf.size(mask), tf.float64)
        return "mask", share * tf.cast(tf.size(values), tf.float64)
    return "count", None
