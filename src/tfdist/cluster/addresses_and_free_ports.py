"""Check host:port addresses, and reserve free ones on this machine."""

import errno
import ipaddress
import random
import re
import socket
import sys
import weakref
from typing import Any

from tfdist.errors import ConfigError, TfdistError

_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")
# Linux, macOS and Windows give higher ports to outgoing connections. Such a connection could otherwise take a
# reserved port before its server has started.
_FIRST_PORT, _LAST_PORT = 15_000, 32_000
_TRIES = 2_000
_last_known: dict[str, list[tuple[Any, ...]]] = {}


def split_address(address: object) -> tuple[str, int]:
    """Split `host:port`, `[IPv6]:port` or `name:port` into a host and a port.

    Raises:
        ValueError: The address is malformed; the text is a clause that follows "received 'abc', ".

    >>> split_address("[::1]:2222")
    ('::1', 2222)
    """
    if not isinstance(address, str):
        raise ValueError("which is not a text")
    if "://" in address:
        raise ValueError("which names a protocol; remove the part before the host")
    host, colon, port = address.rpartition(":")
    if not colon:
        raise ValueError("which has no port")
    if not re.fullmatch(r"[0-9]{1,6}", port):
        raise ValueError("whose port is not a number")
    if not 1 <= int(port) <= 65535:
        raise ValueError(f"whose port {int(port)} is not in 1…65535")
    return _checked_host(host), int(port)


def join_address(host: str, port: int) -> str:
    """Return `host:port`, or `[IPv6]:port`: what `split_address` splits."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def look_up(address: str) -> list[tuple[Any, ...]]:
    """Return what a socket needs to connect to an address, one entry for each host that it stands for.

    If no name server answers, the hosts that the address stood for last count. Before the first answer, there
    are none, and the error of the system is raised.
    """
    try:
        found = socket.getaddrinfo(*split_address(address), type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno != socket.EAI_AGAIN or address not in _last_known:
            raise
        return _last_known[address]
    _last_known[address] = found
    return found


def last_known(address: str) -> list[tuple[Any, ...]]:
    """Return what the last successful look-up of an address has found in this process."""
    return _last_known.get(address, [])


def listen_on_all_interfaces(address: str) -> socket.socket:
    """Return a listener at the port of an address, as TensorFlow's servers listen, whatever its host is."""
    return all_interfaces(split_address(address)[1])


def all_interfaces(port: int) -> socket.socket:
    """Return a listener at a port of all interfaces; the system chooses the port if it is 0."""
    has_both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if has_both else socket.AF_INET
    return socket.create_server(("", port), family=family, dualstack_ipv6=has_both)


def _checked_host(host: str) -> str:
    bracketed = re.fullmatch(r"\[(.*)\]", host)
    if bracketed or ":" in host:
        try:
            address = ipaddress.IPv6Address(bracketed[1] if bracketed else host)
        except ValueError:
            raise ValueError("whose host is not a valid IPv6 address") from None
        if not bracketed:
            raise ValueError(f"whose IPv6 host needs brackets: [{host}]")
        return str(address)
    if re.fullmatch(r"[0-9.]+", host):
        try:
            return str(ipaddress.IPv4Address(host))
        except ValueError:
            raise ValueError("whose host is not a valid IPv4 address") from None
    if len(host) > 253 or not all(_NAME.fullmatch(label) for label in host.removesuffix(".").split(".")):
        raise ValueError("whose host is not a valid DNS name" if host else "which has no host")
    return host.lower().removesuffix(".")


def port_taken(task: str, address: str) -> ConfigError:
    """Return the error for a task whose own port another process listens on."""
    remedy = "`ss -lntp` shows which process has it"
    return ConfigError(f"{task} at {address}", "cannot be listened on: the port is taken", remedy=remedy)


class LocalPorts:
    """A reservation of free TCP ports on this machine, valid while this object lives.

    TensorFlow's server does not accept an open socket, so a port must be free when the server binds it,
    some seconds from now. tfdist therefore reserves each port by a UDP socket of the same number. The
    kernel gives a UDP port, like a TCP port, to one process only, across users and containers. It releases
    the port when the process ends, also after a kill.

    Args:
        count: How many ports to reserve.
        first: A port to take before all others, if it is free.
    """

    def __init__(self, count: int, first: int | None = None) -> None:
        locks: list[socket.socket] = []
        # The operating system's random numbers: two runs with the same seed would otherwise try the same
        # ports in the same order.
        candidates = random.SystemRandom().sample(range(_FIRST_PORT, _LAST_PORT), _TRIES)
        if first is not None:
            candidates = [first, *(port for port in candidates if port != first)]
        self.ports: list[int] = []
        for port in candidates:
            if len(locks) == count:
                break
            lock = _reserve(port)
            if lock is not None:
                locks.append(lock)
                self.ports.append(port)
        self._release = weakref.finalize(self, _close, locks)
        if len(locks) < count:
            self._release()
            raise TfdistError(
                "127.0.0.1",
                expected=f"{count} free ports in {_FIRST_PORT}…{_LAST_PORT - 1}",
                received=f"{len(locks)} after {_TRIES} tries",
                remedy="End the processes that `ss -lntup` shows on these ports",
            )


def _reserve(port: int) -> socket.socket | None:
    lock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        lock.bind(("127.0.0.1", port))
        is_ours = is_free(port)
    except OSError:  # another run reserved the port, or a UDP service uses it
        is_ours = False
    if not is_ours:
        lock.close()
        return None
    return lock


def is_free(port: int) -> bool:
    """Return whether a server could listen on the port now."""
    # TensorFlow binds all interfaces of both families, so a listener on any one of them prevents it.
    for family, host in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                if sys.platform != "win32":  # as gRPC does, so that a port in TIME_WAIT counts as free
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind((host, port))
        except OSError as error:
            if family == socket.AF_INET6 and error.errno not in (errno.EADDRINUSE, errno.EACCES):
                continue  # this machine has no IPv6
            return False
    return True


def _close(sockets: list[socket.socket]) -> None:
    for socket_ in sockets:
        socket_.close()
