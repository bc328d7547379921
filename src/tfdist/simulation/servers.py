"""Simulate workers beside parameter servers: each at its own pace, or all in step."""

import math
from collections.abc import Callable
from functools import partial

from tfdist.simulation.events import Clock, Core, Queue, send
from tfdist.simulation.random_step_times import Draws
from tfdist.simulation.record_of_steps import Record
from tfdist.simulation.setup import Setup

_LEAST_BUCKETS = 4  # variables arrive in parts, however few ps there are


def simulate_servers(setup: Setup, workers: int, steps: int, seed: int) -> Record:
    """Simulate the steps of all workers."""
    return _Cluster(setup, workers, steps, seed).run()


class _Cluster:
    """The tasks and links of a cluster, and the record of the workers' steps."""

    def __init__(self, setup: Setup, workers: int, steps: int, seed: int) -> None:
        self._setup, self._workers, self._total = setup, workers, steps * workers
        self._is_sync = setup.strategy == "parameter_server_sync"
        self._clock = Clock()
        self._draws = Draws(setup.compute, seed)
        count = setup.servers.count
        # On one machine, it gains nothing to send a part before the others.
        self._buckets = count if setup.machine else count * math.ceil(_LEAST_BUCKETS / count)
        self._seconds = setup.wire_bytes / self._buckets / setup.network.bytes_per_second
        self._latency = setup.network.latency
        self._into, self._out = ([Queue(self._clock) for _ in range(workers)] for _ in range(2))
        self._ps_into, self._ps_out, self._ps = ([Queue(self._clock) for _ in range(count)] for _ in range(3))
        self._chief = Queue(self._clock)
        self._machine = setup.machine
        self._cores = [Core(self._clock) for _ in range(setup.machine.cores)] if setup.machine else []
        self._beside = setup.machine.beside if setup.machine else 0.0
        self._updates = 0
        self.record = Record(workers)

    def run(self) -> Record:
        for worker in range(self._workers):
            self._begin(worker)
        self._clock.run()
        return self.record

    def _begin(self, worker: int) -> None:
        """Start a step, which the chief first gives out."""
        self._serve("chief", 0, self._setup.servers.chief_seconds, partial(self._pull, worker))

    def _pull(self, worker: int) -> None:
        """Read all variables, each from its ps."""
        version, arrived = self._updates, list[float]()

        def have() -> None:
            arrived.append(self._clock.reached)
            if len(arrived) == self._buckets:
                self._compute(worker, version, arrived)

        def ask() -> None:
            for bucket in range(self._buckets):
                sender = self._ps_out[bucket % len(self._ps)]
                send(self._clock, sender, self._into[worker], self._seconds, self._latency, have)

        self._clock.after(self._latency, ask)

    def _compute(self, worker: int, version: int, arrived: list[float]) -> None:
        """Compute with the variables that have arrived, and send the gradients."""
        total = self._draws.step()
        self.record.computed[worker] += total
        after = partial(self._end, worker, version)
        left = [self._buckets]

        def applied() -> None:
            left[0] -= 1
            if not left[0]:
                self._clock.after(self._latency, after)

        if core := self._core("worker", worker):
            core.compute(total, partial(self._push_all, worker, core, applied))
            return
        forward = self._setup.compute.forward * total
        overlap = self._setup.exchange.overlap
        # A layer is computed when its variables have arrived and the layer below is done.
        layer = forward / self._buckets
        waits = [time + (self._buckets - i) * layer for i, time in enumerate(arrived)]
        done = max(waits) if overlap else arrived[-1] + forward
        for i in range(self._buckets):
            bucket = self._buckets - 1 - i  # the last layer has its gradients first
            share = (i + 1) / self._buckets if overlap else 1.0
            self._clock.at(done + share * (total - forward), partial(self._push, worker, bucket, applied))

    def _push_all(self, worker: int, core: Core, applied: Callable[[], None]) -> None:
        for bucket in range(self._buckets):
            self._push(worker, bucket, applied)
        core.compute(self._beside, lambda: None)

    def _push(self, worker: int, bucket: int, applied: Callable[[], None]) -> None:
        """Send a gradient to its ps, which adds it to the variable."""
        number = bucket % len(self._ps)
        servers = self._setup.servers
        work = servers.seconds_per_byte * self._setup.wire_bytes / self._buckets
        work += servers.seconds_per_step / self._buckets

        def arrived() -> None:
            self._serve("ps", number, work, applied)

        send(self._clock, self._out[worker], self._ps_into[number], self._seconds, self._latency, arrived)

    def _serve(self, job: str, index: int, seconds: float, then: Callable[[], None]) -> None:
        """Simulate work of a ps or the chief: on its own machine, or on its core of the shared machine."""
        if seconds and (core := self._core(job, index)):
            core.compute(seconds, then)
        else:
            line = self._chief if job == "chief" else self._ps[index]
            line.serve(seconds, then)

    def _core(self, job: str, index: int) -> Core | None:
        return self._cores[self._machine.core_of(job, index)] if self._machine else None

    def _end(self, worker: int, version: int) -> None:
        """Record the step, and start the next one: at once, or when all workers have ended theirs."""
        self.record.step(worker, self._clock.reached, 0 if self._is_sync else self._updates - version)
        self.record.moved += 2 * self._setup.wire_bytes
        self._updates += 1
        if self._is_sync and self._updates % self._workers:
            return
        if self._updates < self._total:
            for ready in range(self._workers) if self._is_sync else [worker]:
                self._begin(ready)
