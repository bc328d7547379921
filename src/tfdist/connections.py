"""Count what this process has sent over its TCP connections, or handed over in place of that."""

import os
import socket
import struct
import sys
import threading
from collections.abc import Collection
from pathlib import Path

__all__ = ["Connections", "count_as_sent"]

_SECONDS_BETWEEN_LOOKS = 1.0
# Of Linux's struct tcp_info: where tcpi_bytes_acked is, and the least length that has it (since Linux 4.1).
_BYTES_ACKED, _LENGTH = 120, 128


class _InMemory:
    """Hold how many bytes went to other tasks in memory."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        """Count some more."""
        with self._lock:
            self.count += count


_in_memory = _InMemory()


def count_as_sent(count: int) -> None:
    """Count bytes that another task has been handed in memory, where they would else have been sent."""
    _in_memory.add(count)


class Connections:
    """Count the bytes of connections with some machines, and of those that have come in at a port.

    Within a block they are looked at once a second: the kernel forgets a connection that is closed, and it
    counts from then on for what it had sent when last looked at.
    """

    def __init__(self, port: int, hosts: Collection[str]) -> None:
        """Say what is counted.

        Args:
            port: Where others connect to this process, from whatever address.
            hosts: The machines, this one among them where what its processes send each other counts.
        """
        self._port = port
        self._addresses = {address for host in set(hosts) for address in _addresses(host)}
        self._before = _in_memory.count
        self._sent: dict[int, int] = {}  # by the inode of the socket, which no later one has
        self._lock = threading.Lock()
        self._is_over = threading.Event()

    def __enter__(self) -> "Connections":
        threading.Thread(target=self._keep_looking, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()

    def bytes_sent(self) -> int | None:
        """Give what was sent so far and has arrived; None where the kernel does not tell.

        What is sent again counts once. The opening of a connection counts as a byte of whoever opened it.
        What tasks of one machine hand over in memory instead counts too, since this was made.
        """
        if not sys.platform.startswith("linux"):
            return None
        with self._lock:
            for each in Path("/proc/self/fd").iterdir():
                try:
                    self._look_at(int(each.name))
                except OSError:  # closed since, or no socket, or one that is connected to nobody
                    continue
            return sum(self._sent.values()) + _in_memory.count - self._before

    def _keep_looking(self) -> None:
        while not self._is_over.wait(_SECONDS_BETWEEN_LOOKS):
            self.bytes_sent()

    def _look_at(self, descriptor: int) -> None:
        line = socket.socket(fileno=descriptor)
        try:
            if line.family not in (socket.AF_INET, socket.AF_INET6):
                return
            peer = _plain(line.getpeername()[0])
            if peer in self._addresses or line.getsockname()[1] == self._port:
                told = line.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LENGTH)
                if len(told) >= _LENGTH:
                    inode = os.fstat(descriptor).st_ino
                    (self._sent[inode],) = struct.unpack_from("=Q", told, _BYTES_ACKED)
        finally:
            line.detach()  # it is another's to close


def _addresses(host: str) -> set[str]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:  # then nobody is connected to it by this name either
        return set()
    return {_plain(str(address[0])) for *_, address in found}


def _plain(address: str) -> str:
    """Write an address in one way: gRPC's sockets are of IPv6, and have those of IPv4 in its form."""
    return address.removeprefix("::ffff:").partition("%")[0]
