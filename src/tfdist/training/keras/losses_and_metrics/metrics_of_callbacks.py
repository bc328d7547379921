"""Read metrics in callbacks, on any worker, without an exchange with the others."""

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdist._utils.keras_2_and_3 import is_keras_2
from tfdist._utils.strategy_kinds import has_mirrored_workers
from tfdist._utils.tf_private import SHARED_VARIABLES, read_in_this_process
from tfdist.strategies.current_cluster_and_strategy import is_chief_of

_read_here: set[int] = set()  # the ids of these variables


@contextlib.contextmanager
def metrics_read_in_this_process(model: Any, strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Make each worker, within the block, read the metrics of all workers from its own variables.

    TensorFlow adds the variables of a Keras 3 metric up over all workers each time one is read: a callback
    that reads a metric on one worker, or OrbaxCheckpoint on the chief, would wait for the others for ever.
    After the block only the chief has a value other than 0.
    """
    if is_keras_2(model) or not has_mirrored_workers(strategy):
        yield
        return
    variables = [variable.value for variable in model.metrics_variables]
    variables = [one for one in variables if id(one) not in _read_here and is_combined_when_read(one)]
    with contextlib.ExitStack() as stack:
        for variable in variables:
            stack.enter_context(read_in_this_process(variable))
        _read_here.update(map(id, variables))
        try:
            yield
        finally:
            _read_here.difference_update(map(id, variables))
            for variable in variables if not is_chief_of(strategy) else ():
                if variable.aggregation == tf.VariableAggregation.SUM:
                    for copy in strategy.experimental_local_results(variable):
                        copy.assign(tf.zeros_like(copy))


def is_read_in_this_process(variable: Any) -> bool:
    """Return whether a metric's variable is read without those of other workers now."""
    return id(variable) in _read_here


def is_combined_when_read(variable: Any) -> bool:
    """Return whether TensorFlow combines the replicas' values of a variable when it is read."""
    if not isinstance(variable, SHARED_VARIABLES):  # made outside of the strategy's scope
        return False
    is_read = variable.synchronization == tf.VariableSynchronization.ON_READ
    return is_read and variable.aggregation in (tf.VariableAggregation.SUM, tf.VariableAggregation.MEAN)
