"""Probe in seconds whether a download can succeed: one that cannot takes minutes to fail."""

import os
import socket
import threading
from urllib.parse import urlsplit

__all__ = ["why_unreachable"]

_PROBE_SECONDS = 5.0


def why_unreachable(host: str) -> str:
    """Return why a host, or the proxy to it, is unreachable; an empty text if it is reachable."""
    proxy = os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy")
    target, port = host, 443
    if proxy:
        parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        target, port = parts.hostname or host, parts.port or 3128
    outcome: list[str] = []

    def connect() -> None:
        try:
            socket.create_connection((target, port), timeout=_PROBE_SECONDS).close()
            outcome.append("")
        except OSError as error:
            outcome.append(error.strerror or str(error))

    # In a thread, because the lookup of a name has no timeout.
    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(_PROBE_SECONDS)
    reason = outcome[0] if outcome else f"no answer in {_PROBE_SECONDS:.0f} s"
    return f"{target}: {reason}" if reason else ""
