"""Be one task of a ring of processes: `ring_task.py RANK SIZE FD_TO_NEXT FD_FROM_PREVIOUS WHAT`."""

import hashlib
import json
import socket
import sys

import numpy as np

from tfdist.exchange import Broken, Ring
from tfdist.exchange.ring import Neighbour

CHUNKS = 3 * (1 << 18)
CASES = [("float32", CHUNKS), ("float64", 1001), ("int64", 2), ("float16", 7), ("float32", 0), ("int8", 13)]


def array(rank, dtype, count):
    rng = np.random.default_rng([rank, count])
    return (rng.normal(size=count) * 10).astype(dtype)


def main():
    rank, size, following, previous = map(int, sys.argv[1:5])
    lines = [socket.socket(fileno=each) for each in (following, previous)]
    ring = Ring(rank, size, Neighbour("the next", lines[0]), Neighbour("the previous", lines[1]))
    found = []
    try:
        if sys.argv[5] == "others":
            ring.add_up(np.zeros(size + rank))  # of another size on each
        for dtype, count in CASES:
            values, before = array(rank, dtype, count), ring.bytes_sent
            ring.add_up(values)
            found.append([hashlib.sha256(values.tobytes()).hexdigest(), ring.bytes_sent - before])
        if sys.argv[5] == "wait":
            print("ready", flush=True)
            sys.stdin.read() if rank == 1 else ring.add_up(np.zeros(10))
    except Broken as error:
        found.append(str(error))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
