"""Register the endpoint of this task, for operations of a graph that the chief has made."""

from tfdist.cluster.config import ClusterConfig
from tfdist.coordination.calls_between_tasks import register
from tfdist.transport.authentication import find_secret
from tfdist.transport.ps_endpoints import Endpoint, ServerEndpoint, WorkerEndpoint

__all__ = ["named", "open_endpoint"]

_OF_WORKERS = ("connect", "begin", "receive", "hand_over")
_OF_SERVERS = ("listen", "moved", "send", "receive")


def named(name: str) -> str:
    """Return the name by which other tasks call a function of the endpoint."""
    return f"endpoint.{name}"


def open_endpoint(cluster: ClusterConfig) -> Endpoint | None:
    """Open this task's endpoint, if the task has a secret and takes part in training.

    Raises:
        ConnectError: This task cannot listen on its address.
    """
    secret, task = find_secret(), cluster.task
    if secret is None or task is None or task.type not in ("ps", "worker"):
        return None
    is_server = task.type == "ps"
    endpoint = (ServerEndpoint if is_server else WorkerEndpoint)(cluster.training(), secret)
    for name in _OF_SERVERS if is_server else _OF_WORKERS:
        register(named(name), getattr(endpoint, name))
    return endpoint
