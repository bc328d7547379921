"""Connect the tasks of a cluster to a ring: listen, tell the others the port, and connect both neighbours."""

import contextlib
import functools
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from tfdist.cluster.addresses_and_free_ports import split_address
from tfdist.cluster.config import ClusterConfig
from tfdist.coordination.grpc_health_probe import SILENCE_LIMIT, ServerSilence
from tfdist.coordination.rendezvous import fingerprint
from tfdist.transport.authentication import Proofs
from tfdist.transport.listen_and_call import ConnectError, Listener, call
from tfdist.transport.neighbour_connection import Neighbour, make_neighbour
from tfdist.transport.ring import Ring
from tfdist.transport.unproven_callers import HANDSHAKE_TIMEOUT

_SECONDS_TO_CONNECT = 15.0
_SECONDS_TO_ACCEPT = _SECONDS_TO_CONNECT + HANDSHAKE_TIMEOUT  # the caller may be here at the last moment

# Return the sum over all tasks of each number, place by place.
AddUp = Callable[[Sequence[float]], Sequence[float]]


def join_ring(
    cluster: ClusterConfig,
    secret: bytes,
    add_up: AddUp,
    *,
    timeout: float | None = None,
    silence_limit: float = SILENCE_LIMIT,
    may_share: bool = True,
    is_encrypted: bool,
) -> Ring:
    """Return the ring of the tasks that train; all of them must call this at the same time.

    Args:
        cluster: The cluster and this process's task.
        secret: What all tasks of the cluster know, and nobody else.
        add_up: Adds numbers up over the tasks before the ring exists.
        timeout: Seconds that an exchange may stand still; None to wait as long as the neighbours answer.
        silence_limit: Seconds without an answer after which a neighbour is lost.
        may_share: Whether neighbours of one machine may use shared memory instead of sending.
        is_encrypted: Whether connections are encrypted; the same for all tasks.

    Raises:
        ConnectError: A task is not connected to its neighbours. All tasks raise it.
    """
    training = cluster.training()
    tasks = training.tasks()
    rank = next(index for index, task in enumerate(tasks) if task == training.task)
    silence_of = functools.partial(ServerSilence, timeout=timeout, limit=silence_limit)
    ports, why, ring = [0.0] * len(tasks), "", None
    with contextlib.ExitStack() as stack:
        try:
            listener = stack.enter_context(Listener.of(training, tasks[rank]))
            ports[rank] = listener.port
        except ConnectError as error:
            why = str(error)
        ports = list(add_up(ports))
        if all(ports):
            try:
                # The ports differ at each start: so no task takes another for one of an earlier start.
                mark = f"{fingerprint(training)} {[int(port) for port in ports]}".encode()
                proofs = Proofs(secret, mark, is_encrypted=is_encrypted)
                following = int(ports[(rank + 1) % len(ports)])
                ring = _connect_neighbours(training, rank, following, listener, proofs, silence_of, may_share)
            except ConnectError as error:
                why = str(error)
    [unconnected] = add_up([float(ring is None)])
    if ring is None or unconnected:
        if ring is not None:
            ring.close()
        raise ConnectError(why or "another task is not connected to its neighbours; its log says why")
    return ring


def _connect_neighbours(
    cluster: ClusterConfig,
    rank: int,
    following_port: int,
    listener: Listener,
    proofs: Proofs,
    silence_of: Callable[[dict[str, str]], ServerSilence],
    may_share: bool,
) -> Ring:
    tasks = cluster.tasks()
    addresses = [cluster.address(task) for task in tasks]
    following, previous = (rank + 1) % len(tasks), (rank - 1) % len(tasks)
    names = [f"{task} at {address}" for task, address in zip(tasks, addresses, strict=True)]
    host = split_address(addresses[following])[0]

    def accept_previous() -> Neighbour:
        connection = listener.caller(_pack_ranks(previous, rank), proofs, _SECONDS_TO_ACCEPT)
        return make_neighbour(names[previous], connection, may_share=may_share, sends=False)

    with ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(accept_previous)
        try:
            connection = call(
                (host, following_port), _pack_ranks(rank, following), proofs, _SECONDS_TO_CONNECT
            )
            to_next = make_neighbour(names[following], connection, may_share=may_share, sends=True)
        except ConnectError as error:
            accepted.add_done_callback(_close_connection)
            raise ConnectError(f"{names[following]}: {error}") from error
        try:
            from_previous = accepted.result()
        except ConnectError as error:
            to_next.connection.close()
            raise ConnectError(f"{names[previous]}: {error}") from error
    silence = silence_of({names[index]: addresses[index] for index in (following, previous)})
    return Ring(rank, len(tasks), to_next, from_previous, silence.why_lost)


def _pack_ranks(caller: int, called: int) -> bytes:
    """Return the ranks of both ends of a connection, in a fixed number of bytes."""
    return struct.pack("!II", caller, called)


def _close_connection(accepted: Future[Neighbour]) -> None:
    if accepted.exception() is None:
        accepted.result().connection.close()
