"""Simulate mirrored workers, which add their gradients up around a ring."""

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from tfdist.simulation.random_step_times import Draws
from tfdist.simulation.record_of_steps import Record
from tfdist.simulation.setup import BYTES, Machine, Setup

Seconds: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.float64]]"


def simulate_ring(setup: Setup, workers: int, steps: int, seed: int) -> Record:
    """Simulate the steps of all workers.

    In each of 2(n-1) rounds a worker sends the n-th part of a bucket to the next worker, as soon as its own
    part is ready and its neighbour's has arrived. Workers cannot add rows of large variables on the way, so
    all rows travel around the ring.
    """
    record, draws = Record(workers), Draws(setup.compute, seed)
    exchange, network = setup.exchange, setup.network
    factor = BYTES[exchange.dtype] / 4
    buckets = max(1, math.ceil(exchange.dense_bytes / exchange.bucket_bytes))
    part = exchange.dense_bytes * factor / buckets / workers / network.bytes_per_second + network.latency
    rows = exchange.sparse_bytes * factor / network.bytes_per_second + network.latency
    sharers = _sharers(workers, setup.machine) if setup.machine else []
    now = np.zeros(workers)
    for _ in range(steps):
        taken = _sharing(draws.steps(workers), sharers)
        forward = setup.compute.forward * taken
        done = now + taken
        free = now
        for bucket in range(buckets):
            share = (bucket + 1) / buckets if exchange.overlap else 1.0
            free = np.maximum(free, now + forward + share * (taken - forward))
            free = _around(free, 2 * (workers - 1), part)
        if exchange.sparse_bytes:
            free = _around(np.maximum(free, done), workers - 1, rows)
        now = np.maximum(free, done)
        for worker in range(workers):
            record.step(worker, float(now[worker]), 0)
            record.computed[worker] += float(taken[worker])
        dense = 2 * (workers - 1) * exchange.dense_bytes * factor
        record.moved += dense + workers * (workers - 1) * exchange.sparse_bytes * factor
    return record


def _sharers(workers: int, machine: Machine) -> list[Any]:
    """Return the workers of each core."""
    cores = np.array([machine.core_of("worker", worker) for worker in range(workers)])
    return [np.flatnonzero(cores == core) for core in np.unique(cores)]


def _sharing(taken: Seconds, sharers: Sequence[Any]) -> Seconds:
    """Return the seconds of workers that start a step together and share their cores equally."""
    ended = np.array(taken)
    for members in sharers:
        ordered = members[np.argsort(taken[members])]
        # Until the first one has ended, all get the time that it needs; then the others, until the next one.
        more = np.diff(taken[ordered], prepend=0.0)
        ended[ordered] = np.cumsum(more * np.arange(len(ordered), 0, -1))
    return ended


def _around(times: Seconds, rounds: int, seconds: float) -> Seconds:
    for _ in range(rounds):
        times = np.maximum(times, np.roll(times, 1)) + seconds
    return times
