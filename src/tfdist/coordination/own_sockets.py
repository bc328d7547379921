"""Find the TCP sockets of this process, also those that TensorFlow has made, in the tables of the kernel."""

import contextlib
import ipaddress
import os
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["BEING_MADE", "ESTABLISHED", "LISTENING", "Socket", "own_sockets", "plain_address"]

ESTABLISHED, BEING_MADE, LISTENING = "01", "02", "0A"  # states in these tables
_TABLES = ("/proc/self/net/tcp", "/proc/self/net/tcp6")
_DESCRIPTORS = Path("/proc/self/fd")


class Socket(NamedTuple):
    """A TCP socket: its state, the port of this end, and the host and port of the other one."""

    state: str
    port: int
    peer: tuple[str, int]


def own_sockets(is_wanted: Callable[[Socket], bool]) -> Iterator[tuple[Socket, socket.socket]]:
    """Yield the wanted TCP sockets of this process, each with a duplicate that is closed afterwards.

    It finds them in /proc, so it finds none on another system than Linux.
    """
    wanted = {f"socket:[{inode}]": found for found, inode in _sockets_of_network() if is_wanted(found)}
    for link in list(_DESCRIPTORS.iterdir()) if wanted else ():
        with contextlib.suppress(OSError):  # closed meanwhile
            found = wanted.get(str(link.readlink()))
            if found is not None:
                with socket.socket(fileno=os.dup(int(link.name))) as duplicate:
                    yield found, duplicate


def plain_address(host: str) -> str:
    """Return an IP address as IPv4 if it is one: a socket for both versions shows it as IPv6."""
    address = ipaddress.ip_address(host.partition("%")[0])
    return str(getattr(address, "ipv4_mapped", None) or address)


def _sockets_of_network() -> Iterator[tuple[Socket, str]]:
    """Yield each TCP socket in this process's network, and its inode."""
    for table in map(Path, _TABLES):
        for line in table.read_text().splitlines()[1:] if table.exists() else ():
            _, own, peer, state, *_, inode = line.split()[:10]
            host, _, port = peer.partition(":")
            yield Socket(state, int(own.rpartition(":")[2], 16), (_host(host), int(port, 16))), inode


def _host(text: str) -> str:
    """Return the address that the kernel writes as 32-bit numbers of this machine's byte order."""
    numbers = [int(text[start : start + 8], 16) for start in range(0, len(text), 8)]
    return plain_address(str(ipaddress.ip_address(struct.pack(f"={len(numbers)}I", *numbers))))
