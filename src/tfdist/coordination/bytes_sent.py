"""Count the bytes that this process sends over TCP connections, or passes to tasks in shared memory."""

import contextlib
import os
import socket
import struct
import sys
import threading
from collections.abc import Collection
from pathlib import Path

from tfdist.cluster.addresses_and_free_ports import join_address
from tfdist.coordination.find_and_break_connections import opened, peers_at, plain_address

_SECONDS_BETWEEN_SAMPLES = 1.0
# In Linux's struct tcp_info: the offset of tcpi_bytes_acked, and the least length that contains it (since
# Linux 4.1). Only this counts one process's bytes on TensorFlow's own connections too: psutil and /proc/net
# have the traffic of a whole interface.
_BYTES_ACKED, _LENGTH = 120, 128


_counting = threading.Lock()
_bytes_in_memory = 0  # that went to other tasks in shared memory


def count_as_sent(count: int) -> None:
    """Count bytes that went to another task in shared memory, as if this process had sent them over TCP."""
    global _bytes_in_memory
    with _counting:
        _bytes_in_memory += count


class SentBytesCounter:
    """Count the bytes sent over connections to some machines, and over those accepted on a port.

    Within a block, a thread reads the counters once a second. The kernel forgets a connection when it
    closes, so the last value read before that counts.
    """

    def __init__(self, port: int, hosts: Collection[str]) -> None:
        """Store which connections count.

        Args:
            port: The port on which this process accepts connections, from any address.
            hosts: The machines. Include this machine to count connections between its own processes.
        """
        self._port = port
        self._addresses = {peer for host in set(hosts) for peer, _ in peers_at(join_address(host, 1))}
        self._in_memory_before = _bytes_in_memory
        self._sent: dict[int, int] = {}  # by the inode of each open socket, which no later socket has
        self._sent_by_closed = 0
        self._lock = threading.Lock()
        self._is_over = threading.Event()

    def __enter__(self) -> "SentBytesCounter":
        threading.Thread(target=self._sample_until_over, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()

    def bytes_sent(self) -> int | None:
        """Return how many bytes have been sent and have arrived; None where the kernel does not report it.

        Bytes that TCP sends again count once. The opening of a connection counts as one byte of the task
        that opened it. Bytes that tasks of one machine pass in shared memory count since this object was
        made.
        """
        if not sys.platform.startswith("linux"):
            return None
        with self._lock:
            sent: dict[int, int] = {}
            for descriptor in Path("/proc/self/fd").iterdir():
                try:
                    self._sample(int(descriptor.name), sent)
                except OSError:  # closed meanwhile, not a socket, or not connected
                    continue
            self._sent_by_closed += sum(self._sent[inode] for inode in self._sent.keys() - sent.keys())
            self._sent = sent
            of_sockets = self._sent_by_closed + sum(sent.values())
            return of_sockets + _bytes_in_memory - self._in_memory_before

    def _sample_until_over(self) -> None:
        while not self._is_over.wait(_SECONDS_BETWEEN_SAMPLES):
            with contextlib.suppress(OSError):  # such as too many open files: the next look may find more
                self.bytes_sent()

    def _sample(self, descriptor: int, sent: dict[int, int]) -> None:
        connection = opened(descriptor)
        try:
            if connection.family not in (socket.AF_INET, socket.AF_INET6):
                return
            peer = plain_address(connection.getpeername()[0])
            if peer in self._addresses or connection.getsockname()[1] == self._port:
                tcp_info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LENGTH)
                if len(tcp_info) >= _LENGTH:
                    inode = os.fstat(descriptor).st_ino
                    (sent[inode],) = struct.unpack_from("=Q", tcp_info, _BYTES_ACKED)
        finally:
            connection.detach()  # another object owns the descriptor and closes it
