"""Call Python functions in other tasks of the cluster, and fetch tensors from there.

TensorFlow's PyFunc calls a Python function in the process that runs the operation, and finds the function
by a token. One task makes the operation and another task runs it, so the tokens are names that both tasks
know.
"""

import logging
from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

from tfdist.cluster.config import Task
from tfdist.coordination.background_threads import each_in_time
from tfdist.errors import first_line

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")
_functions: dict[str, Any] = {}
_log = logging.getLogger("tfdist")


def token(name: str) -> str:
    """Return the token by which TensorFlow finds a function."""
    return f"tfdist.{name}"


def register(name: str, function: Callable[..., Any]) -> None:
    """Register a function that other tasks may call; it takes and returns NumPy arrays."""
    from tfdist._utils.tf_private import register_function  # here: some callers load no TensorFlow

    # TensorFlow's registry does not keep a function alive, so this module does, under the function's name.
    wrapper = lambda *args: function(*args)  # noqa: E731
    _functions[name] = wrapper
    register_function(token(name), wrapper)


def call(task: Task, name: str, dtype: Any, *inputs: Any) -> Any:
    """Call a function in another task; return its value.

    Raises:
        tf.errors.OpError: The task is gone, does not know the function, or the function has failed.
    """
    import tensorflow as tf

    # Made on this task: making a constant on a remote device blocks all Python threads while that task is
    # silent.
    arguments = [tf.constant(value) for value in inputs]
    with tf.device(task.cpu):
        [result] = tf.raw_ops.PyFunc(input=arguments, token=token(name), Tout=[dtype])
    return fetch(result)


def call_each(
    function: Callable[[_Key], _Value], tasks: Iterable[_Key], seconds: float
) -> dict[_Key, _Value]:
    """Call a function that uses TensorFlow for each task, in threads: a call to a silent task never returns.

    Returns:
        The values that have come within some seconds, by task, in the order of the tasks.
    """
    import tensorflow as tf

    from tfdist._utils.tf_private import own_executor

    def called(task: _Key) -> tuple[_Value, ...]:
        # A separate executor: otherwise the failure of one task counts as that of the next.
        with own_executor():
            try:
                return (function(task),)
            except tf.errors.OpError as error:
                _log.info("%s does not answer: %s", task, first_line(error))
                return ()

    tasks = list(tasks)
    answers = each_in_time(called, tasks, seconds, most=len(tasks))
    return {task: value for task, values in answers.items() for value in values}


def fetch(tensor: Any) -> Any:
    """Return the value of a tensor, which may be in another task.

    An operation fetches the value, so other Python threads continue meanwhile. With `numpy()` alone they
    would wait, and the other task would keep 2 kB for ever.
    """
    import tensorflow as tf

    with tf.device(tf.config.list_logical_devices("CPU")[0].name):
        return tf.identity(tensor).numpy()


def resolver_of(strategy: Any) -> Any:
    """Return the cluster resolver of a strategy; None for a process alone."""
    from tfdist._utils.tf_private import cluster_resolver

    resolver = cluster_resolver(strategy)
    return resolver if resolver is not None and resolver.cluster_spec().as_dict() else None


def addresses_of(strategy: Any) -> dict[Task, str]:
    """Return the address of each task of a strategy's cluster; none for a process alone."""
    resolver = resolver_of(strategy)
    jobs = {} if resolver is None else resolver.cluster_spec().as_dict()
    return {Task(job, index): address for job, known in jobs.items() for index, address in enumerate(known)}
