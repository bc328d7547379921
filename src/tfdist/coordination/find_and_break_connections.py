"""Find the TCP sockets of this process, also TensorFlow's, and break its connections to silent tasks.

TensorFlow's calls have no deadline. A call to a task whose machine is stopped or cut off neither returns nor
fails for as long as its TCP connection lives, which takes a quarter of an hour on Linux. Without the
connection it fails at once, as if the task had been killed. gRPC gives a new connection to such a machine up
after 20 s only, so those are shut down too.
"""

import contextlib
import errno
import ipaddress
import logging
import os
import socket
import struct
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tfdist.cluster.addresses_and_free_ports import last_known, look_up

ESTABLISHED, BEING_MADE, LISTENING = "01", "02", "0A"  # states in these tables
_TABLES = ("/proc/self/net/tcp", "/proc/self/net/tcp6")
_CLOSED_MEANWHILE = (errno.ENOENT, errno.EBADF)
_DESCRIPTORS = Path("/proc/self/fd")
_log = logging.getLogger("tfdist")


class Socket(NamedTuple):
    """A TCP socket: its state, the port of this end, and the host and port of the other one."""

    state: str
    port: int
    peer: tuple[str, int]


def own_sockets(is_wanted: Callable[[Socket], bool]) -> Iterator[tuple[Socket, socket.socket]]:
    """Yield the wanted TCP sockets of this process, each with a duplicate that is closed afterwards.

    It finds them in /proc, so it finds none on another system than Linux.

    Raises:
        OSError: This process has no free file descriptor.
    """
    wanted = {f"socket:[{inode}]": found for found, inode in _sockets_of_network() if is_wanted(found)}
    for link in list(_DESCRIPTORS.iterdir()) if wanted else ():
        try:
            found = wanted.get(str(link.readlink()))
            descriptor = None if found is None else os.dup(int(link.name))
        except OSError as error:
            if error.errno not in _CLOSED_MEANWHILE:
                raise
            continue
        if found is not None and descriptor is not None:
            with opened(descriptor) as duplicate:
                yield found, duplicate


def opened(descriptor: int) -> socket.socket:
    """Return an object for a descriptor of a TCP socket, whose owner may read and write meanwhile.

    With a default timeout (`socket.setdefaulttimeout`), Python makes the socket of a new object non-blocking,
    and so the owner's too. It does not if the type says that the socket is non-blocking already.
    """
    return socket.socket(type=socket.SOCK_STREAM | socket.SOCK_NONBLOCK, fileno=descriptor)


def plain_address(host: str) -> str:
    """Return an IP address as IPv4 if it is one: a socket for both versions shows it as IPv6."""
    address = ipaddress.ip_address(host.partition("%")[0])
    return str(getattr(address, "ipv4_mapped", None) or address)


def _sockets_of_network() -> Iterator[tuple[Socket, str]]:
    """Yield each TCP socket in this process's network, and its inode."""
    for table in map(Path, _TABLES):
        for line in table.read_text("utf-8").splitlines()[1:] if table.exists() else ():
            _, own, peer, state, *_, inode = line.split()[:10]
            host, _, port = peer.partition(":")
            yield Socket(state, int(own.rpartition(":")[2], 16), (_host(host), int(port, 16))), inode


def _host(text: str) -> str:
    """Return the address that the kernel writes as 32-bit numbers of this machine's byte order."""
    numbers = [int(text[start : start + 8], 16) for start in range(0, len(text), 8)]
    return plain_address(str(ipaddress.ip_address(struct.pack(f"={len(numbers)}I", *numbers))))


def peers_at(address: str) -> set[tuple[str, int]]:
    """Return the hosts and ports that an address stands for now; a name may stand for another host later."""
    try:
        return _peers(look_up(address))
    except OSError:  # a name that is unknown now
        return set()


def peers_last_at(address: str) -> set[tuple[str, int]]:
    """Return the hosts and ports that an address stood for when this process last found any."""
    return _peers(last_known(address))


def _peers(found: Iterable[tuple[Any, ...]]) -> set[tuple[str, int]]:
    return {(plain_address(str(place[4][0])), int(place[4][1])) for place in found}


def break_connections(peers: Collection[tuple[str, int]], of: str) -> int | None:
    """Shut down all TCP connections of this process to these peers, also those being made.

    Return how many; on another system than Linux it finds none. Return None if this has to be tried again,
    for it needs a free file descriptor; a line in the log says why, and names the owner of the connections.
    """
    count = 0
    try:
        for _, connection in own_sockets(
            lambda found: found.state in (ESTABLISHED, BEING_MADE) and found.peer in peers
        ):
            with contextlib.suppress(OSError):  # closed meanwhile
                connection.shutdown(socket.SHUT_RDWR)
                count += 1
    except OSError as error:  # such as too many open files
        _log.warning("cannot look for connections to %s, trying again: %s", of, error.strerror)
        return None
    return count
