"""End this process's calls to a task that is silent, by shutting down the connections that carry them.

TensorFlow's calls have no deadline. A call to a task whose machine is stopped or cut off neither returns nor
fails for as long as its TCP connection lives, which takes a quarter of an hour on Linux. Without the
connection it fails at once, as if the task had been killed. gRPC gives a new connection to such a machine up
after 20 s only, so those are shut down too.
"""

import contextlib
import ipaddress
import os
import socket
import struct
from collections.abc import Collection, Iterator
from pathlib import Path

from tfdist.cluster.addresses import split_address

__all__ = ["break_connections", "peers_at"]

_TABLES = ("/proc/self/net/tcp", "/proc/self/net/tcp6")
_DESCRIPTORS = Path("/proc/self/fd")
_ESTABLISHED, _BEING_MADE = "01", "02"  # states in these tables


def peers_at(address: str) -> set[tuple[str, int]]:
    """Return the hosts and ports that an address stands for now; a name may stand for another host later."""
    try:
        found = socket.getaddrinfo(*split_address(address), type=socket.SOCK_STREAM)
    except OSError:  # a name that is unknown now
        return set()
    return {(_plain(str(place[4][0])), int(place[4][1])) for place in found}


def break_connections(peers: Collection[tuple[str, int]]) -> int:
    """Shut down all TCP connections of this process to these peers, also those being made; return how many.

    It finds them in /proc, so it finds none on another system than Linux.
    """
    wanted = {f"socket:[{inode}]" for peer, inode in _connections() if peer in peers}
    count = 0
    for link in list(_DESCRIPTORS.iterdir()) if wanted else ():
        with contextlib.suppress(OSError):  # closed meanwhile
            if str(link.readlink()) in wanted:
                with socket.socket(fileno=os.dup(int(link.name))) as connection:
                    connection.shutdown(socket.SHUT_RDWR)
                count += 1
    return count


def _connections() -> Iterator[tuple[tuple[str, int], str]]:
    """Yield the peer and the inode of each TCP connection in this process's network."""
    for table in map(Path, _TABLES):
        lines = table.read_text().splitlines()[1:] if table.exists() else []
        for line in lines:
            fields = line.split()
            if fields[3] in (_ESTABLISHED, _BEING_MADE):
                host, _, port = fields[2].partition(":")
                yield (_host(host), int(port, 16)), fields[9]


def _host(text: str) -> str:
    """Return the address that the kernel writes as 32-bit numbers of this machine's byte order."""
    numbers = [int(text[start : start + 8], 16) for start in range(0, len(text), 8)]
    return _plain(str(ipaddress.ip_address(struct.pack(f"={len(numbers)}I", *numbers))))


def _plain(host: str) -> str:
    """Return an IP address as IPv4 if it is one: a socket for both versions shows it as IPv6."""
    address = ipaddress.ip_address(host.partition("%")[0])
    return str(getattr(address, "ipv4_mapped", None) or address)
