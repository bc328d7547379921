"""Answer checks of whether a process is alive, where no TensorFlow server runs that would."""

import collections
import contextlib
import functools
import logging
import socket
import threading
from collections.abc import Iterator

from tfdist.cluster.addresses_and_free_ports import listen_on_all_interfaces
from tfdist.coordination.background_threads import running_beside
from tfdist.coordination.grpc_health_probe import HTTP2_SETTINGS

_MOST_OPEN = 16
_SECONDS_BETWEEN_LOOKS = 0.5
_log = logging.getLogger("tfdist")


@contextlib.contextmanager
def answering_health_checks(address: str) -> Iterator[None]:
    """Answer health checks at an address as a gRPC server does, while the block runs.

    Nothing else depends on it: if the port is taken, this task is only not watched.
    """
    try:
        listener = listen_on_all_interfaces(address)
    except OSError as error:
        _log.info("no health checks are answered at %s: %s", address, error.strerror)
        yield
        return
    listener.settimeout(_SECONDS_BETWEEN_LOOKS)
    with listener, running_beside(functools.partial(_answer, listener)):
        yield


def _answer(listener: socket.socket, is_over: threading.Event) -> None:
    """Send each caller what a server says first. It reads nothing, so nobody can hold it up."""
    # A connection that is closed before its caller has read the answer may be reset, and the answer lost.
    connections: collections.deque[socket.socket] = collections.deque()
    while not is_over.is_set():
        try:
            connection = listener.accept()[0]
        except TimeoutError:
            continue
        except OSError as error:  # too many open files, or the caller has gone already
            _log.info("a health check was not answered: %s", error.strerror)
            is_over.wait(_SECONDS_BETWEEN_LOOKS)
            continue
        connections.append(connection)
        with contextlib.suppress(OSError):  # the caller is gone already
            connection.setblocking(False)
            connection.sendall(HTTP2_SETTINGS)
            connection.shutdown(socket.SHUT_WR)
        if len(connections) > _MOST_OPEN:
            connections.popleft().close()
    for connection in connections:
        connection.close()
