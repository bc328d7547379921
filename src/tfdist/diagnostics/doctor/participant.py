"""Describe this task as the doctors of the others meet it, and call them in its name."""

import struct
import time
from collections.abc import Callable
from dataclasses import dataclass

from tfdist.cluster.addresses_and_free_ports import split_address
from tfdist.cluster.config import ClusterConfig, Task
from tfdist.diagnostics.doctor.messages import Clock, Facts, Link, LinkError, Time
from tfdist.transport.authentication import Proofs
from tfdist.transport.listen_and_call import call

__all__ = ["Participant", "proofs_of", "ranks_of", "round_trips"]

_MARK = b"tfdist doctor 1"
_SECONDS_TO_CONNECT = 3.0
_ROUND_TRIPS = 8


def proofs_of(secret: bytes | None) -> Proofs:
    """Return the proofs of a secret; without one, everybody can make them."""
    return Proofs(secret or b"", _MARK)


def ranks_of(cluster: ClusterConfig, called: Task) -> bytes:
    """Return what a proof is bound to besides the secret: the task that is called."""
    return struct.pack("!I", cluster.tasks().index(called))


@dataclass(frozen=True)
class Participant:
    """This task, among the tasks whose doctors meet.

    Attributes:
        cluster: The cluster.
        task: This task.
        secret: What all of them know.
        facts: What this task says of its host.
        clock: Returns the time of this host.
    """

    cluster: ClusterConfig
    task: Task
    secret: bytes | None
    facts: Facts
    clock: Callable[[], float] = time.time

    def call(self, other: Task) -> tuple[Link, Facts]:
        """Call the doctor of another task, exchange proofs and facts, and return the connection.

        Raises:
            ConnectError: It cannot be reached, or does not know the same secret.
            LinkError: It sends something else.
        """
        address = split_address(self.cluster.address(other))
        ranks, proofs = ranks_of(self.cluster, other), proofs_of(self.secret)
        connection = call(address, ranks, proofs, _SECONDS_TO_CONNECT)
        link = Link(connection)
        try:
            link.send(self.facts)
            return link, link.receive(Facts)
        except LinkError:
            connection.close()
            raise


def round_trips(link: Link, clock: Callable[[], float] = time.time) -> tuple[float, float]:
    """Return the seconds of the fastest round trip, and by how much the other clock is ahead."""
    results = []
    for _ in range(_ROUND_TRIPS):
        began, then = clock(), time.perf_counter()
        link.send(Clock())
        theirs = link.receive(Time).seconds
        taken = time.perf_counter() - then
        results.append((taken, theirs - (began + taken / 2)))
    return min(results)
