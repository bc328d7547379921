"""Look names up, and try which addresses are this host's and which others answer, each with a deadline."""

import contextlib
import errno
import ipaddress
import re
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tfdist.coordination.background_threads import each_in_time
from tfdist.coordination.grpc_health_probe import connected, reason_of

_SECONDS_FOR_NAMES = 10.0
_A_STRANGER = ("192.0.2.1", 9)  # RFC 5737: nobody's; nothing is sent there


class Names(NamedTuple):
    """The addresses of a host's name, or why they are unknown."""

    addresses: tuple[str, ...] = ()
    problem: str = ""


class Reached(NamedTuple):
    """The result of a connection to an address.

    Attributes:
        is_open: Whether something listens there.
        is_refused: Whether the host answered that nothing does, or a firewall did so in its place.
        is_unknown: Whether no address belongs to the host's name.
        problem: Why there is no connection.
    """

    is_open: bool = False
    is_refused: bool = False
    is_unknown: bool = False
    problem: str = ""

    @classmethod
    def by(cls, error: OSError) -> "Reached":
        """Return what an error means."""
        is_refused, is_unknown = error.errno == errno.ECONNREFUSED, isinstance(error, socket.gaierror)
        return cls(is_refused=is_refused, is_unknown=is_unknown, problem=reason_of(error))


def look_up(hosts: Iterable[str], seconds: float = _SECONDS_FOR_NAMES) -> dict[str, Names]:
    """Return what each host's name stands for."""
    hosts = sorted(set(hosts))
    found = each_in_time(_look_up, hosts, seconds)
    return {host: found.get(host, Names(problem=f"no answer within {seconds:g} s")) for host in hosts}


def _look_up(host: str) -> Names:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except UnicodeError:  # a label that is too long for the DNS
        return Names(problem="no name of the DNS")
    except OSError as error:
        return Names(problem=str(error.strerror))
    return Names(tuple(sorted({str(address[0]) for _, _, _, _, address in found})))


def is_local(address: str) -> bool:
    """Return whether an address, as a number, is one of this host's."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except OSError as error:
        return error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EINVAL)
    return True


def is_loopback(address: str) -> bool:
    """Return whether only this host can reach an address, given as a number."""
    return address.startswith("127.") or address == "::1"


def own_address() -> str:
    """Return the address from which this host sends to others; empty if it has no route to any."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(_A_STRANGER)
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def own_addresses(root: Path = Path("/")) -> tuple[str, ...]:
    """Return the addresses of all interfaces; without Linux, that from which this host sends to others.

    Args:
        root: The folder that has the system's `proc`.
    """
    found = [own_address()]
    with contextlib.suppress(OSError):
        local = re.findall(r"\|-- (\S+)\n\s+/32 host LOCAL", (root / "proc/net/fib_trie").read_text("utf-8"))
        found += [address for address in local if not is_loopback(address)]
    with contextlib.suppress(OSError):
        lines = (root / "proc/net/if_inet6").read_text("utf-8").splitlines()
        found += [str(ipaddress.IPv6Address(bytes.fromhex(line.split()[0]))) for line in lines]
    return tuple(dict.fromkeys(address for address in found if address))


def reach(address: str) -> Reached:
    """Try to connect to a task's address."""
    try:
        connected(address).close()
    except OSError as error:
        return Reached.by(error)
    return Reached(is_open=True)
