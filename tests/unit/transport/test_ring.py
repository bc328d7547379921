"""A ring of processes adds up to the same bits on all, sends no more than it must, and notices who is lost."""

import contextlib
import json
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import ring_task

from again import again
from tfdist.transport.compression import Narrowing
from tfdist.transport.listen_and_call import ExchangeError
from tfdist.transport.neighbour_connection import Neighbour
from tfdist.transport.ring import Ring, Whole
from tfdist.transport.tensor_fusion import Fusion

SECONDS = 300  # a busy machine is no failure


@contextlib.contextmanager
def ring(size, what="add", way="line"):
    """Start the processes of a ring, with all lines between them."""
    if way == MEMORY and not hasattr(os, "memfd_create"):
        pytest.skip("the system has no memory of this kind")
    pairs = []
    with contextlib.ExitStack() as stack:
        for _ in range(size):
            with socket.create_server(("127.0.0.1", 0)) as listener:
                caller = stack.enter_context(socket.create_connection(listener.getsockname()))
                pairs.append((caller, stack.enter_context(listener.accept()[0])))
        tasks = []
        for rank in range(size):
            fds = [pairs[rank][0].fileno(), pairs[rank - 1][1].fileno()]
            words = [sys.executable, ring_task.__file__, *map(str, (rank, size, *fds, what, way))]
            environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3] / "src")}
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            tasks.append(stack.enter_context(subprocess.Popen(words, env=environ, pass_fds=fds, **pipes)))
            stack.callback(tasks[-1].kill)
        for pair in pairs:
            for each in pair:
                each.close()
        yield tasks


def results(tasks):
    return [json.loads(task.communicate(timeout=SECONDS)[0].splitlines()[-1]) for task in tasks]


MEMORY = "memory"
ways = pytest.mark.parametrize("way", ["line", "tls", MEMORY])


@pytest.mark.parametrize(
    ("size", "way"),
    [
        *((2, "line"), (3, MEMORY), (3, "tls"), (5, "line")),
        *(again(*each) for each in ((2, "tls"), (2, MEMORY), (3, "line"), (5, "tls"), (5, MEMORY))),
    ],
)
def test_all_end_with_the_same_bits_and_send_what_they_must(size, way):
    with ring(size, way=way) as tasks:
        found = results(tasks)

    for place, (dtype, count) in enumerate(ring_task.CASES):
        parts = [ring_task.array(rank, dtype, count) for rank in range(size)]
        expected = parts[0].copy()
        if size == 2:  # there is one order only
            expected += parts[1]
            assert found[0][place][0] == ring_task.hashlib.sha256(expected.tobytes()).hexdigest()
        assert len({each[place][0] for each in found}) == 1
        sent = sum(each[place][1] for each in found)
        headers = 28 * size
        whole = 2 * (size - 1) * expected.nbytes + headers
        assert sent == whole if way != "memory" else sent < 2000 * size


@ways
@pytest.mark.parametrize("size", [again(2), 3])
def test_arrays_of_several_lengths_are_gathered_by_rank(size, way):
    with ring(size, "gather", way=way) as tasks:
        found = results(tasks)

    for place, lengths in enumerate(ring_task.GATHERED):
        arrays = [ring_task.array(rank, "uint8", lengths[rank]) for rank in range(size)]
        digests = [ring_task.hashlib.sha256(values.tobytes()).hexdigest() for values in arrays]
        assert [of_task[place][0] for of_task in found] == [digests] * size
        sent = sum(of_task[place][1] for of_task in found)
        sizes = 2 * (size - 1) * 8 * size + 28 * size
        whole = (size - 1) * sum(lengths[:size]) + 28 * size + sizes
        assert sent == whole if way != "memory" else sent < 3000 * size


@pytest.mark.parametrize("size", [2, 3])
def test_narrow_numbers_are_few_bytes_the_same_on_all_and_right_on_average(size):
    with ring(size, "narrow") as tasks:
        found = results(tasks)

    whole = 2 * (size - 1) * 4 * ring_task.NUMBERS  # bytes, of all tasks together
    largest = np.abs(ring_task.sum_of(range(size))).max()
    for place, (share, rounding) in enumerate([(1 / 2, 2**-8), (1 / 2, 2**-11), (1 / 4, 1 / 127)]):
        of_all = [each[place] for each in found]
        assert len({each["digest"] for each in of_all}) == 1
        assert share <= sum(each["sent"] for each in of_all) / whole < 1.05 * share
        # Each of the numbers is rounded by its own task, and each sum by the one that passes it on.
        assert 0 < of_all[0]["error"] < 2 * size * rounding * largest
        assert of_all[0]["finite"][:2] == [False, False]
    coarse = found[0][2]
    assert coarse["error of the mean"] < coarse["error"] / 8  # what is rounded away comes later


@ways
def test_a_task_that_is_killed_is_named_by_its_neighbours(way):
    with ring(3, "wait", way) as tasks:
        for task in tasks:
            assert task.stdout.readline() == b"ready\n"
        tasks[1].kill()
        first, _, last = tasks
        said = [results([each])[0][-1] for each in (first, last)]

    assert said[1].startswith("the previous ")
    assert all("closed the connection" in each or "gone" in each for each in said)


@ways
def test_tasks_that_are_at_different_exchanges_do_not_mix_them(way):
    with ring(2, "others", way) as tasks:
        found = results(tasks)

    assert any("the previous is at another exchange" in each[-1] for each in found)
    assert all(len(each) == 1 for each in found)


@pytest.mark.parametrize(
    ("size", "count", "way"),
    [
        *((2, 1_000_000, MEMORY), (2, 1, "tls"), (3, 1, "line")),
        *(again(2, 1_000_000, way) for way in ("line", "tls")),
        *(again(2, 1, way) for way in ("line", MEMORY)),
        *(again(3, 1, way) for way in ("tls", MEMORY)),
    ],
)
def test_the_time_that_is_waited_for_a_late_task_is_told_from_what_the_exchange_takes(size, count, way):
    with ring(size, f"late{count}", way) as tasks:
        for task in tasks[1:]:
            assert task.stdout.readline() == b"waits\n"
        tasks[0].stdin.write(b"go\n")
        tasks[0].stdin.flush()
        found = results(tasks)

    for names, seconds, waiting in found:
        assert names == ["float64"]
        assert 0 <= waiting <= seconds
    for _, _, waiting in found[1:]:
        assert waiting > 0.9


def test_memory_is_lent_again_only_when_no_part_of_it_is_held():
    shapes = ((3, 5), (), (0, 2), (100,))
    fusion = Fusion(np.dtype("float32"), shapes)
    arrays = [np.full(shape, place, "float32") for place, shape in enumerate(shapes)]
    whole = fusion.fused(arrays)
    parts = fusion.parts(whole)
    address = whole.ctypes.data
    held = parts[3][10:20]
    del whole, parts
    other = fusion.fused([each + 1 for each in arrays])

    assert other.ctypes.data != address
    assert held.tolist() == [3.0] * 10
    assert [each.tolist() for each in fusion.parts(other)] == [(each + 1).tolist() for each in arrays]
    assert all(each.ctypes.data % 64 == 0 for each in fusion.parts(other))
    del held
    assert fusion.fused(arrays).ctypes.data == address


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_an_infinite_gradient_in_8_bits_is_gone_in_the_next_step(bad):
    shapes = ((10,), (300,))
    fusion, narrowing = Fusion(np.dtype("float32"), shapes), Narrowing("int8")
    finite = [np.linspace(-1, 1, *shape, dtype="float32") for shape in shapes]
    used = set()
    for first in (0.5, bad, 0.5, 0.5):
        whole = fusion.fused([np.full(10, first, "float32"), finite[1]])
        used.add(whole.ctypes.data)
        payload = narrowing.loaded(whole)
        with np.errstate(all="ignore"):
            payload.load(0, len(payload.wire))
            payload.unload()
        small, large = (part.copy() for part in fusion.parts(whole))
        if np.isfinite(first):
            assert np.abs(small - first).max() < 0.02
            assert np.abs(large - finite[1]).max() < 0.02
        else:
            assert not np.isfinite(small).any()
        del whole, payload

    assert len(used) == 1  # else nothing of the step before could be left


def test_a_ring_that_closes_is_noticed_though_a_child_process_has_its_connections():
    with contextlib.ExitStack() as stack:
        mine, theirs = zip(*(socket.socketpair() for _ in range(2)), strict=True)
        for each in theirs:
            stack.enter_context(each)
            each.settimeout(SECONDS / 4)
        for each in mine:
            stack.enter_context(socket.socket(fileno=os.dup(each.fileno())))  # as of a child
        Ring(0, 2, *(Neighbour("other", each) for each in mine)).close()
        assert [each.recv(1) for each in theirs] == [b"", b""]


class Costly(Whole):
    """An array for which there is not enough memory."""

    def load(self, start, stop):
        raise MemoryError("no room")


def test_a_task_that_has_no_memory_for_an_exchange_is_noticed_by_the_others():
    with contextlib.ExitStack() as stack:
        sockets = [[stack.enter_context(each) for each in socket.socketpair()] for _ in range(2)]
        links = [[Neighbour(name, each) for each in pair] for name, pair in zip("ab", sockets, strict=True)]
        rings = [Ring(rank, 2, links[rank][0], links[1 - rank][1]) for rank in range(2)]
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(rings[0].add_up, Whole(np.ones(9)))
            with pytest.raises(MemoryError, match="no room"):
                rings[1].add_up(Costly(np.ones(9)))
            try:
                with pytest.raises(ExchangeError, match="gone"):
                    waiting.result(SECONDS)
            finally:
                rings[0].why_lost = lambda _: "the test ends"
        with pytest.raises(ExchangeError, match="no room"):
            rings[1].add_up(Whole(np.ones(9)))
