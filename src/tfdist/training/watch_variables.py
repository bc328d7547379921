"""Find out that only some of the mirrored workers build a model, or load one: new variables are exchanged."""

import contextlib
from collections.abc import Iterator

import tensorflow as tf

from tfdist.strategies.extended_tf_strategies import MultiWorkerMirrored
from tfdist.training.same_call import watch_calls
from tfdist.training.task_errors import naming_lost_tasks

__all__ = ["watch_variables"]


def watch_variables(strategy: tf.distribute.Strategy) -> None:
    """Count the variables that this process makes from now on, as its calls of tfdist are counted."""
    watch = watch_calls(strategy)
    if watch is None or not isinstance(strategy, MultiWorkerMirrored):
        return

    @contextlib.contextmanager
    def while_making(name: str) -> Iterator[None]:
        with naming_lost_tasks(f"the variable {name}", strategy), watch.variable(name):
            yield

    strategy.while_making = while_making
