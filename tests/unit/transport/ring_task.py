"""Run one task of a ring of processes: `ring_task.py RANK SIZE FD_TO_NEXT FD_FROM_PREVIOUS WHAT WAY`."""

import hashlib
import json
import socket
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from tfdist.transport import listen_and_call
from tfdist.transport.compression import Narrowing
from tfdist.transport.listen_and_call import ExchangeError
from tfdist.transport.neighbour_connection import make_neighbour
from tfdist.transport.ring import Ring, Whole, _Round
from tfdist.transport.tls import TlsConnection

listen_and_call.PROVEN_TIMEOUT = 300.0  # a busy machine is no failure
CHUNKS = 3 * (1 << 18)
NARROW, NUMBERS, ROUNDS = ["bfloat16", "float16", "int8"], 10_001, 32
CASES = [("float32", CHUNKS), ("float64", 1001), ("int64", 2), ("float16", 7), ("float32", 0), ("int8", 13)]
GATHERED = [(5, 0, 9), (0, 0, 0), (1, 3_000_001, 70_000)]
CASES.append(("float32", 3_000_001))  # more than is in memory at once


def array(rank, dtype, count):
    rng = np.random.default_rng([rank, count])
    return (rng.normal(size=count) * 10).astype(dtype)


def narrowed(ring, rank, wire_type):
    """Exchange one array several times; give what was sent each time, and the sums' errors and digest."""
    numbers, exact = sum_of([rank]), sum_of(range(ring.size))
    narrowing, before = Narrowing(wire_type), ring.bytes_sent
    found = []
    for _ in range(ROUNDS):
        values = numbers.copy()
        ring.add_up(narrowing.loaded(values))
        found.append(values)
    sent = (ring.bytes_sent - before) / ROUNDS
    values = np.array([np.nan, -np.inf, 1.0] * 100, "float32")
    ring.add_up(Narrowing(wire_type).loaded(values))
    return {
        "digest": hashlib.sha256(np.stack([*found, exact]).tobytes()).hexdigest(),
        "sent": sent,
        "error": float(np.abs(found[0] - exact).max()),
        "error of the mean": float(np.abs(np.mean(found, axis=0) - exact).max()),
        "finite": np.isfinite(values).tolist()[:3],
    }


def gathered(ring, rank):
    """Gather arrays of several lengths; return their digests and the bytes sent."""
    found = []
    for lengths in GATHERED:
        before = ring.bytes_sent
        arrays = ring.gather(array(rank, "uint8", lengths[rank]))
        digests = [hashlib.sha256(values.tobytes()).hexdigest() for values in arrays]
        found.append([digests, ring.bytes_sent - before])
    return found


def late(ring, rank, count):
    """Add up an array that the first task delays; return its type, the seconds taken and those waited."""
    wait = _Round._wait

    def wait_and_say(own):
        if not (can_move := wait(own)):  # for a second
            print("waits", flush=True)
        return can_move

    if rank:
        _Round._wait = wait_and_say
    else:
        sys.stdin.readline()
    ring.add_up(Whole(np.zeros(count)))
    [taken] = ring.taken.values()
    return [list(ring.taken), taken.seconds, taken.waiting]


def sum_of(ranks):
    return sum(array(rank, "float32", NUMBERS) for rank in ranks)


def connection(descriptor, *, sends):
    """Return a connection, which is encrypted if the ring's way is tls."""
    made = socket.socket(fileno=descriptor)
    return TlsConnection(made, bytes(32), is_caller=sends) if sys.argv[6] == "tls" else made


def main():
    rank, size, following, previous = map(int, sys.argv[1:5])
    with ThreadPoolExecutor(2) as pool:
        found = [
            pool.submit(
                make_neighbour,
                name,
                connection(each, sends=sends),
                sends=sends,
                may_share=sys.argv[6] == "memory",
            )
            for name, each, sends in (("the next", following, True), ("the previous", previous, False))
        ]
    ring = Ring(rank, size, *(each.result() for each in found))
    found = []
    try:
        if sys.argv[5] == "others":
            ring.add_up(Whole(np.zeros(size + rank)))  # of another size on each
        if sys.argv[5] == "narrow":
            found = [narrowed(ring, rank, wire_type) for wire_type in NARROW]
        if sys.argv[5].startswith("late"):
            found = late(ring, rank, int(sys.argv[5].removeprefix("late")))
        if sys.argv[5] == "gather":
            found = gathered(ring, rank)
        for dtype, count in CASES if sys.argv[5] in ("add", "wait") else ():
            values, before = array(rank, dtype, count), ring.bytes_sent
            ring.add_up(Whole(values))
            found.append([hashlib.sha256(values.tobytes()).hexdigest(), ring.bytes_sent - before])
        if sys.argv[5] == "wait":
            print("ready", flush=True)
            sys.stdin.read() if rank == 1 else ring.add_up(Whole(np.zeros(10)))
    except ExchangeError as error:
        found.append(str(error))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
