"""End this process's calls to a task that is silent, by shutting down the connections that carry them.

TensorFlow's calls have no deadline. A call to a task whose machine is stopped or cut off neither returns nor
fails for as long as its TCP connection lives, which takes a quarter of an hour on Linux. Without the
connection it fails at once, as if the task had been killed. gRPC gives a new connection to such a machine up
after 20 s only, so those are shut down too.
"""

import contextlib
import socket
from collections.abc import Collection

from tfdist.cluster.addresses_and_free_ports import split_address
from tfdist.coordination.own_sockets import BEING_MADE, ESTABLISHED, own_sockets, plain_address

__all__ = ["break_connections", "peers_at"]


def peers_at(address: str) -> set[tuple[str, int]]:
    """Return the hosts and ports that an address stands for now; a name may stand for another host later."""
    try:
        found = socket.getaddrinfo(*split_address(address), type=socket.SOCK_STREAM)
    except OSError:  # a name that is unknown now
        return set()
    return {(plain_address(str(place[4][0])), int(place[4][1])) for place in found}


def break_connections(peers: Collection[tuple[str, int]]) -> int:
    """Shut down all TCP connections of this process to these peers, also those being made; return how many.

    On another system than Linux it finds none.
    """
    count = 0
    for _, connection in own_sockets(
        lambda found: found.state in (ESTABLISHED, BEING_MADE) and found.peer in peers
    ):
        with contextlib.suppress(OSError):  # closed meanwhile
            connection.shutdown(socket.SHUT_RDWR)
            count += 1
    return count
