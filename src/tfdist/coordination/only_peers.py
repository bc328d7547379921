"""Admit only the hosts of the cluster to this task's port, if the user wants it.

TensorFlow's servers listen on all interfaces, and execute what anybody asks for. A process may tell the
kernel which packets its own sockets get, by a small program (a classic BPF filter): here those from the hosts
of the cluster. For all others the port is as if a firewall dropped their packets.
"""

import contextlib
import ctypes
import ipaddress
import logging
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Collection, Iterator, Sequence

from tfdist.cluster.addresses_and_free_ports import split_address
from tfdist.cluster.config import ClusterConfig
from tfdist.coordination.background_threads import running_beside
from tfdist.coordination.find_and_break_connections import (
    ESTABLISHED,
    LISTENING,
    Socket,
    own_sockets,
    peers_at,
)
from tfdist.errors import ConfigError

ONLY_PEERS = "TFDIST_ONLY_PEERS"
_VALUES = {"": False, "0": False, "1": True}

_SO_ATTACH_FILTER = 26
# Instructions: load from the packet, shift, compare, jump, return.
_LOAD_BYTE, _LOAD_WORD, _SHIFT_RIGHT, _IF_EQUAL, _JUMP, _RETURN = 0x30, 0x20, 0x74, 0x15, 0x05, 0x06
_IP_HEADER = 0x1_0000_0000 - 0x100000  # where the kernel's filters find it
_IPV4_SOURCE, _IPV6_SOURCE = _IP_HEADER + 12, _IP_HEADER + 8
_ALL_OF_IT, _NOTHING = 0xFFFFFFFF, 0
_LOOPBACK = ("127.0.0.1", "::1")

_SECONDS_BETWEEN_LOOKS = 0.02  # while something begins to listen
_SECONDS_BETWEEN_LATER_LOOKS = 1.0
_SECONDS_BETWEEN_LOOKUPS = 5.0  # of names, which may stand for another host after a restart
_later: dict[int, threading.Event] = {}  # ends the looks at a port after its start
_log = logging.getLogger("tfdist")

_Instruction = tuple[int, int, int, int]  # code, and jumps if true and if false, and a number


@contextlib.contextmanager
def admitting_only_peers(cluster: ClusterConfig) -> Iterator[None]:
    """Restrict this task's port to the hosts of the cluster, if TFDIST_ONLY_PEERS is 1.

    Whatever begins to listen on the port within the block is filtered within milliseconds, and whoever came
    before that is disconnected. A thread continues to look names up after the block.

    Raises:
        ConfigError: The variable has another value than 0 and 1, or this system cannot do it.
    """
    value = os.environ.get(ONLY_PEERS, "")
    if value not in _VALUES:
        raise ConfigError(ONLY_PEERS, expected="0 or 1", received=repr(value), remedy="Correct it")
    if not _VALUES[value] or cluster.task is None:
        yield
        return
    guard = _Guard(cluster, split_address(cluster.address(cluster.task))[1])
    try:
        with running_beside(guard.look_until):
            yield
    finally:
        with contextlib.suppress(OSError):  # it looks again, and has said why it could not
            guard.look()
        guard.continue_alone()


class _Hosts:
    """The IP addresses of all tasks, as far as their names are known."""

    def __init__(self, cluster: ClusterConfig) -> None:
        self._cluster = cluster
        self._known: dict[str, set[str]] = {}

    def look_up(self) -> frozenset[str]:
        """Return the addresses; of a name that is unknown now, those of before."""
        for task in self._cluster.tasks():
            address = self._cluster.address(task)
            self._known[address] = {host for host, _ in peers_at(address)} or self._known.get(address, set())
        return frozenset({*_LOOPBACK, *(host for hosts in self._known.values() for host in hosts)})


class _Guard:
    """A filter of the sockets of this process that listen on a port."""

    def __init__(self, cluster: ClusterConfig, port: int) -> None:
        self._port, self._hosts = port, _Hosts(cluster)
        self._looked_up_at, self._admitted = time.monotonic(), self._hosts.look_up()
        self._is_looking_up = False
        _check(self._admitted)
        _log.info("port %d admits only %s", port, ", ".join(sorted(self._admitted)))

    def look_until(self, is_over: threading.Event, pause: float = _SECONDS_BETWEEN_LOOKS) -> None:
        """Look what listens, again and again."""
        is_failure_reported = False
        while not is_over.wait(pause):
            try:
                self.look()
            except OSError as error:  # such as too many open files
                if not is_failure_reported:
                    _log.warning("cannot look what listens on port %d, trying again: %s", self._port, error)
                is_failure_reported = True
            else:
                is_failure_reported = False

    def continue_alone(self) -> None:
        """Look more seldom from now on, in the place of the guard of an earlier call."""
        if self._port in _later:
            _later[self._port].set()
        is_over = _later[self._port] = threading.Event()
        arguments = (is_over, _SECONDS_BETWEEN_LATER_LOOKS)
        threading.Thread(target=self.look_until, args=arguments, daemon=True).start()

    def look(self) -> None:
        """Filter what listens on the port, and disconnect whoever came before the filter."""
        if time.monotonic() - self._looked_up_at > _SECONDS_BETWEEN_LOOKUPS and not self._is_looking_up:
            # In a thread: name servers that do not answer would delay the filter by seconds for each name.
            self._is_looking_up = True
            try:
                threading.Thread(target=self._look_up, daemon=True).start()
            except RuntimeError as error:  # too many threads
                self._is_looking_up = False
                _log.warning("cannot look up the hosts of the cluster, trying again: %s", error)
        for found, own in own_sockets(self._concerns):
            if found.state == LISTENING:
                _attach(own, self._admitted)
                continue
            _log.warning("closed a connection from %s, which is no host of the cluster", found.peer[0])
            with contextlib.suppress(OSError):  # it is closed already
                own.shutdown(socket.SHUT_RDWR)

    def _look_up(self) -> None:
        try:
            self._admitted = self._hosts.look_up()
        finally:
            self._looked_up_at, self._is_looking_up = time.monotonic(), False

    def _concerns(self, found: Socket) -> bool:
        is_stranger = found.state == ESTABLISHED and found.peer[0] not in self._admitted
        return found.port == self._port and (found.state == LISTENING or is_stranger)


def _check(hosts: Collection[str]) -> None:
    if sys.platform != "linux":
        raise ConfigError(ONLY_PEERS, "needs Linux", remedy="Leave it out, and use a firewall")
    with socket.socket() as probe:
        try:
            _attach(probe, hosts)
        except OSError as error:
            problem = f"is not possible for {len(hosts)} hosts here: {error.strerror}"
            raise ConfigError(ONLY_PEERS, problem, remedy="Leave it out, and use a firewall") from error


def _attach(listener: socket.socket, hosts: Collection[str]) -> None:
    instructions = [struct.pack("=HBBI", *instruction) for instruction in _program(hosts)]
    code = ctypes.create_string_buffer(b"".join(instructions))
    program = struct.pack("@HP", len(instructions), ctypes.addressof(code))
    listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


def _program(hosts: Collection[str]) -> Sequence[_Instruction]:
    """Return a program that takes packets from these addresses, and no others."""
    addresses = sorted(map(ipaddress.ip_address, hosts), key=lambda address: (address.version, address))
    ipv4 = list(_ipv4(address.packed for address in addresses if address.version == 4))
    ipv6 = list(_ipv6(address.packed for address in addresses if address.version == 6))
    return [
        (_LOAD_BYTE, 0, 0, _IP_HEADER),
        (_SHIFT_RIGHT, 0, 0, 4),  # the version
        (_IF_EQUAL, 1, 0, 4),
        (_JUMP, 0, 0, len(ipv4)),
        *ipv4,
        *ipv6,
    ]


def _ipv4(addresses: Iterator[bytes]) -> Iterator[_Instruction]:
    yield (_LOAD_WORD, 0, 0, _IPV4_SOURCE)
    for address in addresses:
        yield (_IF_EQUAL, 0, 1, int.from_bytes(address, "big"))
        yield (_RETURN, 0, 0, _ALL_OF_IT)
    yield (_RETURN, 0, 0, _NOTHING)


def _ipv6(addresses: Iterator[bytes]) -> Iterator[_Instruction]:
    for address in addresses:
        words = struct.unpack("!4I", address)
        for place, word in enumerate(words):
            yield (_LOAD_WORD, 0, 0, _IPV6_SOURCE + 4 * place)
            yield (_IF_EQUAL, 0, 2 * (len(words) - 1 - place) + 1, word)
        yield (_RETURN, 0, 0, _ALL_OF_IT)
    yield (_RETURN, 0, 0, _NOTHING)
