"""Join two network namespaces by a wire of 100 Mbit/s, whose packets this process carries: late, not all, or none.

Each end is a TUN device, from which a process reads IP packets and writes them as they come. So the wire needs
no traffic control of the kernel's, and a cut is what it is between machines: silence, and no error for anyone.
"""

import contextlib
import fcntl
import functools
import heapq
import os
import random
import select
import shutil
import socket
import struct
import subprocess
import threading
import time
from pathlib import Path

__all__ = ["HOSTS", "NAMES", "Wire", "why_no_wire"]

HOSTS = ("10.80.0.1", "10.80.0.2")
NAMES = ("near", "far")  # of these hosts, on these hosts
_ETC = Path("/etc/netns")  # `ip netns exec` puts what a namespace has here over /etc
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x4004_54CA, 0x1, 0x1000
_LARGEST = 65536
_BYTES_PER_SECOND = 100e6 / 8  # in each direction
_LARGE, _TENSORFLOW_PORT = 1000, 2222


class Wire:
    """Carry packets between two hosts, which are network namespaces of their own.

    Attributes:
        delay: Seconds that a packet takes.
        loss: The share of packets that do not come.
        is_cut: Whether none comes.
        alters: Whether the next large packet between ports of the transport's own comes with other bytes.
        carried: How many came.
        lost: How many did not.
    """

    def __init__(self, seed: int = 0) -> None:
        self.delay = self.loss = 0.0
        self.is_cut = self.alters = False
        self.carried = self.lost = 0
        self._chance = random.Random(seed)
        self._free_at = [0.0, 0.0]  # when each direction has sent what it has to send
        self._names = [f"wire{os.getpid()}{side}" for side in "ab"]
        self._addresses = list(HOSTS)

    def inside(self, side: int) -> list[str]:
        """Return the words that start a command on one of the hosts."""
        return ["ip", "netns", "exec", self._names[side]]

    def move(self, side: int, address: str) -> None:
        """Move a host to another address, which its name stands for from now on."""
        name, before = self._names[side], self._addresses[side]
        _ip("-n", name, "addr", "del", f"{before}/24", "dev", name)
        _ip("-n", name, "addr", "add", f"{address}/24", "dev", name)
        self._addresses[side] = address
        self._write_names()

    def add(self, side: int, address: str) -> None:
        """Add one more address to a host, from which it may call."""
        name = self._names[side]
        _ip("-n", name, "addr", "add", f"{address}/24", "dev", name)

    def _write_names(self) -> None:
        lines = [f"{address} {name}\n" for address, name in zip(self._addresses, NAMES, strict=True)]
        for name in self._names:  # in place: processes that run have this file, and not its name
            (_ETC / name / "hosts").write_text("".join(["127.0.0.1 localhost\n", *lines]))

    def __enter__(self) -> "Wire":
        with contextlib.ExitStack() as stack:
            for name in self._names:
                (_ETC / name).mkdir(parents=True)
                stack.callback(shutil.rmtree, _ETC / name)
            self._write_names()
            self._bell, ringer = os.pipe()
            self._ends = [self._host(stack, side) for side in (0, 1)]
            thread = threading.Thread(target=self._carry)
            thread.start()
            stack.callback(os.close, self._bell)
            stack.callback(thread.join)
            stack.callback(os.close, ringer)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _host(self, stack: contextlib.ExitStack, side: int) -> int:
        """Make one host, with the device at its end of the wire; return the device's file descriptor."""
        name = self._names[side]
        _ip("netns", "add", name)
        stack.callback(_ip, "netns", "del", name)
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        stack.callback(os.close, device)
        fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI))
        _ip("link", "set", name, "netns", name)
        _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", name, "addr", "add", f"{HOSTS[side]}/24", "dev", name)
        _ip("-n", name, "link", "set", name, "up")
        return device

    def _carry(self) -> None:
        under_way: list[tuple[float, int, int, bytes]] = []
        while True:
            wait = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
            ready, _, _ = select.select([*self._ends, self._bell], [], [], wait)
            if self._bell in ready:
                return
            for side, end in enumerate(self._ends):
                if end in ready:
                    packet = os.read(end, _LARGEST)
                    if self.is_cut or self._chance.random() < self.loss:
                        self.lost += 1
                    else:
                        self.carried += 1
                        if self.alters and _is_of_transport(packet):
                            packet, self.alters = _altered(packet), False
                        begun = max(time.monotonic(), self._free_at[side])
                        self._free_at[side] = begun + len(packet) / _BYTES_PER_SECOND
                        due = self._free_at[side] + self.delay
                        heapq.heappush(under_way, (due, self.carried, self._ends[1 - side], packet))
            while under_way and under_way[0][0] <= time.monotonic():
                _, _, end, packet = heapq.heappop(under_way)
                os.write(end, packet)


def _is_of_transport(packet: bytes) -> bool:
    """Return whether a packet has much to say and none of its ports is that of TensorFlow's servers."""
    header = 4 * (packet[0] & 15)
    ports = struct.unpack_from("!HH", packet, header)
    return packet[9] == socket.IPPROTO_TCP and len(packet) > _LARGE and _TENSORFLOW_PORT not in ports


def _altered(packet: bytes) -> bytes:
    """Swap two of a packet's words near its end. TCP does not notice: its checksum is a sum."""
    even = len(packet) - 100 - len(packet) % 2
    one, other = packet[even : even + 2], packet[even + 2 : even + 4]
    assert one != other
    return packet[:even] + other + one + packet[even + 4 :]


@functools.cache
def why_no_wire() -> str:
    """Try to make one; give the reason why that cannot be, or nothing."""
    try:
        with Wire():
            return ""
    except FileNotFoundError as error:
        return f"{error.filename} is missing"
    except (OSError, RuntimeError) as error:
        return str(error)


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=20, check=False)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")
