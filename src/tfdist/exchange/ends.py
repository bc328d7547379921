"""Let operations of a graph, wherever it was made, call this task's end of the post.

TensorFlow's PyFunc calls a function of Python in the process that runs it, which it finds by a token. The
chief makes the graph, and other tasks run it: so the tokens are names that all of them know.
"""

from typing import Any

from tfdist.cluster import ClusterConfig
from tfdist.exchange.post import Post, ServerPost, WorkerPost
from tfdist.exchange.secret import find_secret

__all__ = ["open_post", "token"]

_OF_WORKERS = ("meet", "begin", "receive", "hand_over")
_OF_SERVERS = ("port", "moved", "send", "receive")


def token(name: str) -> str:
    """Give what a function of the post is found by."""
    return f"tfdist.post.{name}"


def open_post(cluster: ClusterConfig) -> Post | None:
    """Open this task's end, if it has a secret to know others by and a part in training.

    Raises:
        Unmet: This task's address is none that can be listened on.
    """
    secret, task = find_secret(), cluster.task
    if secret is None or task is None or task.type not in ("ps", "worker"):
        return None
    is_server = task.type == "ps"
    post = (ServerPost if is_server else WorkerPost)(cluster.training(), secret)
    for name in _OF_SERVERS if is_server else _OF_WORKERS:
        _register(token(name), getattr(post, name))
    return post


def _register(name: str, function: Any) -> None:
    from tensorflow.python.ops import script_ops  # here, for what is else in this room needs no TensorFlow

    # TensorFlow keeps no function alive by itself; what holds it here is the registry, under its own name.
    held = lambda *args: function(*args)  # noqa: E731
    _held[name] = held
    script_ops._py_funcs._funcs[name] = held


_held: dict[str, Any] = {}
