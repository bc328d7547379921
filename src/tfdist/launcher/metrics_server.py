"""Serve a WSGI application by HTTP; a caller that sends nothing keeps no thread for ever."""

import contextlib
import logging
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

_MOST_CALLERS = 16  # at a time; a new one replaces the oldest
_SECONDS_TO_SPEAK = 10.0
_SECONDS_AFTER_FAILED_ACCEPT = 0.1
_log = logging.getLogger("tfdist")


@contextlib.contextmanager
def serving(application: Callable[..., Any], port: int, address: str) -> Iterator[None]:
    """Serve an application at a port while the block runs.

    Raises:
        OSError: The port is taken, or the address is not one of this host's.
    """
    family, _, _, _, where = socket.getaddrinfo(
        address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    kind = type("_ServerOfFamily", (_Server,), {"address_family": family})
    server = kind((str(where[0]), port), _Handler)
    server.set_app(application)
    thread = threading.Thread(target=server.serve_forever, daemon=True, name="tfdist-metrics")
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(WSGIRequestHandler):
    timeout = _SECONDS_TO_SPEAK  # of each read and write

    def log_message(self, *_: Any) -> None:
        """Do not log requests."""


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    """A server with a thread for each caller, and a limited number of them."""

    daemon_threads = True

    def __init__(self, *arguments: Any) -> None:
        self._callers: dict[Any, None] = {}  # connections in the order of arrival
        self._lock = threading.Lock()
        super().__init__(*arguments)

    def server_bind(self) -> None:
        """Bind the port, and do not look the name of the host up, as HTTPServer does: it may take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def get_request(self) -> Any:
        try:
            return super().get_request()
        except OSError:  # such as too many open files; the server tries again at once
            time.sleep(_SECONDS_AFTER_FAILED_ACCEPT)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._callers[request] = None
            if len(self._callers) > _MOST_CALLERS:
                oldest = next(iter(self._callers))
                del self._callers[oldest]
                with contextlib.suppress(OSError):  # it has ended already
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread reads the end
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._callers.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.info("a request for metrics by %s has failed: %s", client_address[0], sys.exc_info()[1])
