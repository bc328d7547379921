"""End this process's calls to a task that is silent, by shutting down the connections that carry them.

TensorFlow's calls have no deadline. A call to a task whose machine is stopped or cut off neither returns nor
fails for as long as its TCP connection lives, which takes a quarter of an hour on Linux. Without the
connection it fails at once, as if the task had been killed.
"""

import ipaddress
import os
import socket
from collections.abc import Collection, Iterator
from pathlib import Path

from tfdist.cluster.addresses import split_address

__all__ = ["break_connections", "peers_at"]

_DESCRIPTORS = Path("/proc/self/fd")


def peers_at(address: str) -> set[tuple[str, int]]:
    """Return the hosts and ports that an address stands for now; a name may stand for another host later."""
    try:
        found = socket.getaddrinfo(*split_address(address), type=socket.SOCK_STREAM)
    except OSError:  # a name that is unknown now
        return set()
    return {(_plain(str(place[4][0])), int(place[4][1])) for place in found}


def break_connections(peers: Collection[tuple[str, int]]) -> int:
    """Shut down all TCP connections that this process has made to these peers; return how many.

    It finds them in /proc, so it finds none on another system than Linux.
    """
    count = 0
    for connection in _connections():
        with connection:
            host, port = connection.getpeername()[:2]
            if (_plain(host), port) in peers:
                connection.shutdown(socket.SHUT_RDWR)
                count += 1
    return count


def _connections() -> Iterator[socket.socket]:
    """Yield copies of the TCP sockets of this process that are connected."""
    if not _DESCRIPTORS.exists():
        return
    for link in list(_DESCRIPTORS.iterdir()):
        try:
            is_socket = str(link.readlink()).startswith("socket:")
            connection = socket.socket(fileno=os.dup(int(link.name))) if is_socket else None
        except OSError:  # closed meanwhile
            continue
        if connection is None:
            continue
        try:
            is_tcp = connection.family in (socket.AF_INET, socket.AF_INET6) and connection.getpeername()
        except OSError:  # it listens, or is being closed
            is_tcp = False
        if is_tcp and connection.type == socket.SOCK_STREAM:
            yield connection
        else:
            connection.close()


def _plain(host: str) -> str:
    """Return an IP address as IPv4 if it is one: a socket for both versions shows it as IPv6."""
    address = ipaddress.ip_address(host.partition("%")[0])
    return str(getattr(address, "ipv4_mapped", None) or address)
