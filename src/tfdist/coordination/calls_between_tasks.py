"""Call Python functions in other tasks of the cluster, and fetch tensors from there.

TensorFlow's PyFunc calls a Python function in the process that runs the operation, and finds the function
by a token. One task makes the operation and another task runs it, so the tokens are names that both tasks
know.
"""

from collections.abc import Callable
from typing import Any

from tfdist.cluster.config import Task

__all__ = ["call", "fetch", "register", "resolver_of", "token"]


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
    with tf.device(f"/job:{task.type}/replica:0/task:{task.index}/device:CPU:0"):
        [result] = tf.raw_ops.PyFunc(input=arguments, token=token(name), Tout=[dtype])
    return fetch(result)


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


_functions: dict[str, Any] = {}
