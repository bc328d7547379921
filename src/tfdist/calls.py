"""Let tasks of a cluster call functions of Python in each other, and fetch what others hold.

TensorFlow's PyFunc calls a function of Python in the process that runs it, which it finds by a token. The
operation is made by one task, and run by another one: so the tokens are names that both of them know.
"""

from collections.abc import Callable
from typing import Any

from tfdist.cluster import Task

__all__ = ["answer", "ask", "fetch", "resolver_of", "token"]


def token(name: str) -> str:
    """Give what a function is found by."""
    return f"tfdist.{name}"


def answer(name: str, function: Callable[..., Any]) -> None:
    """Let others call a function in this process, from now on; it takes and gives NumPy arrays."""
    from tensorflow.python.ops import script_ops  # here, for what calls this may need no TensorFlow itself

    # TensorFlow keeps no function alive by itself; what holds it here is the registry, under its own name.
    held = lambda *args: function(*args)  # noqa: E731
    _held[name] = held
    script_ops._py_funcs._funcs[token(name)] = held


def ask(task: Task, name: str, dtype: Any, *inputs: Any) -> Any:
    """Call a function in another task; give its value.

    Raises:
        tf.errors.OpError: The task is gone, or does not know the function, or that has failed.
    """
    import tensorflow as tf

    # Made here: to make it on a remote device is to hold all threads of Python up where that is silent.
    given = [tf.constant(each) for each in inputs]
    with tf.device(f"/job:{task.type}/replica:0/task:{task.index}/device:CPU:0"):
        [found] = tf.raw_ops.PyFunc(input=given, token=token(name), Tout=[dtype])
    return fetch(found)


def fetch(tensor: Any) -> Any:
    """Give the value of a tensor, which may be another task's.

    An operation fetches it, in which other threads of Python go on. Where `numpy()` fetches it, they do not,
    and the other task keeps 2 kB of it for ever.
    """
    import tensorflow as tf

    with tf.device(tf.config.list_logical_devices("CPU")[0].name):
        return tf.identity(tensor).numpy()


def resolver_of(strategy: Any) -> Any:
    """Give what knows the tasks of a strategy's cluster, and this one; None for a process alone."""
    # TensorFlow's ParameterServerStrategy has one, and does not give it.
    resolver = strategy.cluster_resolver or getattr(strategy, "_cluster_resolver", None)
    return resolver if resolver is not None and resolver.cluster_spec().as_dict() else None


_held: dict[str, Any] = {}
