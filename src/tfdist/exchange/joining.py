"""Join the ring of a cluster's tasks: open a door, tell the others its port, and meet both neighbours."""

import contextlib
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from tfdist.addresses import split_address
from tfdist.cluster import ClusterConfig
from tfdist.exchange.lines import Door, Unmet, call
from tfdist.exchange.neighbours import Neighbour, take_over
from tfdist.exchange.ring import Ring
from tfdist.exchange.secret import Proofs
from tfdist.exchange.silence import Silence
from tfdist.rollcall import fingerprint

__all__ = ["AddUp", "join_ring"]

_SECONDS_TO_MEET = 15.0

# Add up, place by place, the numbers of all tasks.
AddUp = Callable[[Sequence[float]], Sequence[float]]


def join_ring(
    cluster: ClusterConfig,
    secret: bytes,
    add_up: AddUp,
    *,
    timeout: float | None = None,
    may_share: bool = True,
) -> Ring:
    """Give the ring of the tasks that train; all of them have to call this at the same time.

    Args:
        cluster: The cluster and this process's task.
        secret: What all tasks know, and nobody else.
        add_up: How the tasks speak to each other until then.
        timeout: Seconds that an exchange may stand still; as long as the neighbours answer where None.
        may_share: Whether neighbours of one machine may hand over in memory what they would send.

    Raises:
        Unmet: A task has not met its neighbours. All raise it.
    """
    training = cluster.training()
    tasks = training.tasks()
    rank = next(index for index, task in enumerate(tasks) if task == training.task)
    ports, why, ring = [0.0] * len(tasks), "", None
    with contextlib.ExitStack() as stack:
        try:
            door = stack.enter_context(Door(split_address(training.address(tasks[rank]))[0]))
            ports[rank] = door.port
        except Unmet as error:
            why = str(error)
        ports = list(add_up(ports))
        if all(ports):
            try:
                ring = _meet(training, rank, [int(port) for port in ports], door, secret, timeout, may_share)
            except Unmet as error:
                why = str(error)
    [unmet] = add_up([float(ring is None)])
    if ring is None or unmet:
        if ring is not None:
            ring.close()
        raise Unmet(why or "another task has not met its neighbours; its log says why")
    return ring


def _meet(
    cluster: ClusterConfig,
    rank: int,
    ports: Sequence[int],
    door: Door,
    secret: bytes,
    timeout: float | None,
    may_share: bool,
) -> Ring:
    tasks = cluster.tasks()
    addresses = [cluster.address(task) for task in tasks]
    following, previous = (rank + 1) % len(tasks), (rank - 1) % len(tasks)
    # The ports are new at each start: so nobody is taken for a task of an earlier one.
    proofs = Proofs(secret, f"{fingerprint(cluster)} {list(ports)}".encode())
    names = [f"{task} at {address}" for task, address in zip(tasks, addresses, strict=True)]
    host = split_address(addresses[following])[0]

    def answered() -> Neighbour:
        line = door.caller(_between(previous, rank), proofs, _SECONDS_TO_MEET)
        return take_over(names[previous], line, may_share=may_share, sends=False)

    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(answered)
        try:
            line = call((host, ports[following]), _between(rank, following), proofs, _SECONDS_TO_MEET)
            to_next = take_over(names[following], line, may_share=may_share, sends=True)
        except Unmet as error:
            coming.add_done_callback(_hang_up)
            raise Unmet(f"{names[following]}: {error}") from error
        try:
            from_previous = coming.result()
        except Unmet as error:
            to_next.line.close()
            raise Unmet(f"{names[previous]}: {error}") from error
    silence = Silence({names[each]: addresses[each] for each in (following, previous)}, timeout)
    return Ring(rank, len(tasks), to_next, from_previous, silence.why_lost)


def _between(caller: int, called: int) -> bytes:
    """Say between whom a line is, in a fixed number of bytes."""
    return struct.pack("!II", caller, called)


def _hang_up(coming: Future[Neighbour]) -> None:
    if coming.exception() is None:
        coming.result().line.close()
