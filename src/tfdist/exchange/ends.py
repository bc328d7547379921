"""Let operations of a graph, which the chief has made, call this task's end of the post."""

from tfdist.calls import answer
from tfdist.cluster import ClusterConfig
from tfdist.exchange.post import Post, ServerPost, WorkerPost
from tfdist.exchange.secret import find_secret

__all__ = ["named", "open_post"]

_OF_WORKERS = ("meet", "begin", "receive", "hand_over")
_OF_SERVERS = ("port", "moved", "send", "receive")


def named(name: str) -> str:
    """Give the name by which others call a function of the post."""
    return f"post.{name}"


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
        answer(named(name), getattr(post, name))
    return post
