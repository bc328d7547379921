"""Hold the variables that training changes: read them all, set them all, agree on the chief's."""

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.loop.shards import built_on_parts

__all__ = ["State", "optimizer_variables", "take_from_chief"]


class State:
    """Hold the variables of a model, its optimizer and its random generators, by name."""

    def __init__(self, model: Any, strategy: tf.distribute.Strategy, others: Sequence[Any] = ()) -> None:
        """Collect the variables.

        Args:
            model: The model, built and compiled.
            strategy: The strategy in whose scope it was made.
            others: Variables that belong to neither model nor optimizer.
        """
        self._strategy = strategy
        optimizer = model.optimizer
        with strategy.scope(), built_on_parts(optimizer):
            optimizer.build(model.trainable_variables)
        # Metrics are begun anew by whoever counts. The learning rate is what the model is compiled with now.
        skipped = {id(each) for metric in model.metrics for each in metric.variables}
        for each in (optimizer, getattr(optimizer, "inner_optimizer", optimizer)):
            skipped.add(id(getattr(each, "_learning_rate", None)))
        kept = [("model", model.variables), ("optimizer", optimizer_variables(optimizer)), ("random", others)]
        self._variables: dict[str, Any] = {}
        for owner, variables in kept:
            for each in variables:
                if id(each) in skipped:
                    continue
                skipped.add(id(each))
                name = f"{owner}/{len(self._variables)}/{getattr(each, 'path', None) or each.name}"
                self._variables[name] = each

    @property
    def names(self) -> list[str]:
        """Give the names of all variables, in their order."""
        return list(self._variables)

    def values(self) -> dict[str, tf.Tensor]:
        """Read all variables, each whole."""
        with self._strategy.scope():
            return {name: tf.convert_to_tensor(self._copy(each)) for name, each in self._variables.items()}

    def assign(self, values: Sequence[Any]) -> None:
        """Set all variables, in their order."""
        with self._strategy.scope():
            for variable, value in zip(self._variables.values(), values, strict=True):
                _value(variable).assign(tf.cast(value, variable.dtype))

    def _copy(self, variable: Any) -> Any:
        """Give this process's copy: to read a moving average of Keras 2's is to average over all workers."""
        value = _value(variable)
        is_copied = isinstance(self._strategy, tf.distribute.MultiWorkerMirroredStrategy)
        return self._strategy.experimental_local_results(value)[0] if is_copied else value


def take_from_chief(strategy: tf.distribute.Strategy, values: Sequence[Any], *, is_chief: bool) -> list[Any]:
    """Give every worker the chief's values of what all of them hold; all of them have to call it.

    Numbers of up to 53 bits are exact, for they are sent as float64.
    """
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return list(values)
    found = _taking(strategy, is_chief)([tf.cast(each, tf.float64) for each in values])
    local = [strategy.experimental_local_results(each)[0] for each in found]
    return [tf.cast(each, tf.convert_to_tensor(mine).dtype) for each, mine in zip(local, values, strict=True)]


@functools.lru_cache(maxsize=1)
def _taking(strategy: tf.distribute.Strategy, is_chief: bool) -> Any:
    """Make the function that takes the chief's values: once, for tracing is what takes long."""

    def added_up(sent: list[tf.Tensor]) -> Any:
        context = tf.distribute.get_replica_context()
        # Of the chief's replicas, one speaks. (Not by a factor of 0 for the others: 0 times NaN is NaN.)
        speaks = tf.logical_and(tf.equal(context.replica_id_in_sync_group, 0), is_chief)
        said = [tf.where(speaks, each, tf.zeros_like(each)) for each in sent]
        return context.all_reduce(tf.distribute.ReduceOp.SUM, said)

    return tf.function(lambda sent: strategy.run(added_up, args=(sent,)), autograph=False)


def _value(variable: Any) -> Any:
    """Give TensorFlow's variable behind one of Keras 3."""
    return getattr(variable, "_value", variable) if hasattr(variable, "path") else variable


def optimizer_variables(optimizer: Any) -> Sequence[Any]:
    """Give an optimizer's variables, which early ones of Keras 2 have a method for."""
    found: Sequence[Any] = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
    return found
