"""Divide the time of each task's steps among computing, exchange, waiting, and input."""

from collections.abc import Sequence

from tfdist._utils.profiler_span import AWAIT_SUMS, EXCHANGE, WAITING
from tfdist.profiling.clock_alignment import Alignment
from tfdist.profiling.read_recording import Recording, Span
from tfdist.profiling.timeline_paths import TaskShares

# If several happen at a time, the first of these counts: an exchange that is hidden costs no time.
KINDS = ("compute", "input", "waiting", "exchange")
_OTHER = "other"
# Operations that call Python, which names what it does, or that only start another one.
_CALLS = ("PyFunc", "EagerPyFunc", "PyFuncStateless", "PartitionedCall", "StatefulPartitionedCall", "NoOp")
# On GPUs these are kernels of NCCL, which also wait for each other, and copies between GPUs.
_EXCHANGES = ("Collective", "_Send", "_Recv", "_HostSend", "_HostRecv", "Nccl", "nccl", "MemcpyP2P")
_INPUTS = ("Iterator", "MultiDeviceIterator", "OptionalHasValue", "OptionalGetValue")


def kind_of(span: Span) -> str:
    """Return what a part of the work counts as; empty if its parts or nothing else count."""
    if span.name in (WAITING, EXCHANGE):
        return "waiting" if span.name == WAITING else "exchange"
    if not span.operation or span.operation in _CALLS or span.name == AWAIT_SUMS:
        return ""
    if span.operation.startswith(_EXCHANGES):
        return "exchange"
    return "input" if span.operation.startswith(_INPUTS) else "compute"


def shares_of(recordings: Sequence[Recording], alignment: Alignment) -> list[TaskShares]:
    """Return how each task has spent the time of its steps; one that serves, of those of the others."""
    common = _window([span for recording in recordings for span in _shifted(recording, alignment)])
    return [_of_task(recording, alignment, common) for recording in recordings]


def _shifted(recording: Recording, alignment: Alignment) -> list[tuple[int, int]]:
    shift = alignment.shifts[recording.task]
    return [(step.begin + shift, step.end + shift) for step in recording.steps]


def _window(times: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    return (min(begin for begin, _ in times), max(end for _, end in times)) if times else None


def _of_task(recording: Recording, alignment: Alignment, common: tuple[int, int] | None) -> TaskShares:
    shift, own = alignment.shifts[recording.task], _shifted(recording, alignment)
    all_times = [(span.begin + shift, span.end + shift) for span in recording.spans]
    begin, end = _window(own) or common or _window(all_times) or (0, 0)
    parts = [
        (max(span.begin + shift, begin), min(span.end + shift, end), KINDS.index(kind))
        for span in recording.spans
        if (kind := kind_of(span))
    ]
    taken = _divided([part for part in parts if part[0] < part[1]])
    whole = max(end - begin, 1)
    shares = {kind: taken[number] / whole for number, kind in enumerate(KINDS)}
    shares[_OTHER] = max(0.0, 1.0 - sum(shares.values()))
    steps = sum(int(step.facts.get("steps", 1)) for step in recording.steps)
    return TaskShares(recording.task, steps, (end - begin) / 1e9, shares)


def _divided(parts: Sequence[tuple[int, int, int]]) -> list[int]:
    """Return the time of each kind; of those at the same time, the first kind counts."""
    taken, under_way = [0] * len(KINDS), [0] * len(KINDS)
    begins = [(begin, 1, kind) for begin, _, kind in parts]
    ends = [(end, -1, kind) for _, end, kind in parts]
    before = 0
    for at, change, kind in sorted([*begins, *ends]):
        first = next((number for number, count in enumerate(under_way) if count), None)
        if first is not None:
            taken[first] += at - before
        under_way[kind] += change
        before = at
    return taken


def summary(shares: Sequence[TaskShares], alignment: Alignment) -> list[str]:
    """Return a table of the tasks' shares, and how their clocks were compared, line by line."""
    columns = (*KINDS, _OTHER)
    width = max([4, *(len(of_task.task) for of_task in shares)])
    lines = [f"{'task':<{width}}  {'a step':>9}  " + "  ".join(f"{name:>8}" for name in columns)]
    for of_task in shares:
        step = f"{1e3 * of_task.seconds / of_task.steps:.1f} ms" if of_task.steps else "-"
        parts = "  ".join(f"{of_task.shares[name]:>8.0%}" for name in columns)
        lines.append(f"{of_task.task:<{width}}  {step:>9}  {parts}")
    error = f" (within {alignment.largest_error / 1e6:.2g} ms)" if alignment.largest_error else ""
    return [*lines, f"clocks: {alignment.method}{error}"]
