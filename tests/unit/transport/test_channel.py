"""What comes over a channel is the arrays that were sent, or an ExchangeError: never another error, nor much memory."""

import contextlib
import random
import select
import socket
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from fuzzing import manifest_of, mutated

from tfdist.transport.channel import _HEADER, _MARK, Channel, _Header
from tfdist.transport.listen_and_call import ExchangeError
from tfdist.transport.ring_links import _MESSAGE, Neighbour, make_neighbour
from tfdist.transport.shared_memory import SharedBuffers, share_memory

ARRAYS = [np.arange(700, dtype="float32"), np.arange(6.0).reshape(2, 3)]
MANIFEST = manifest_of(ARRAYS)


def never_lost(seconds):
    return ""


@pytest.fixture
def connected():
    """Yield a function that makes two connected sockets, which are closed with the test."""
    with contextlib.ExitStack() as stack, socket.create_server(("127.0.0.1", 0)) as listener:

        def pair():
            near = stack.enter_context(socket.create_connection(listener.getsockname()))
            return near, stack.enter_context(listener.accept()[0])

        yield pair


def buffers(pair):
    """Return the shared memory of both ends of a connection."""
    with ThreadPoolExecutor(2) as pool:
        memories = list(pool.map(share_memory, pair))
    if None in memories:
        pytest.skip("the system has no memory of this kind")
    return [SharedBuffers(*memory) for memory in memories]


def altered(rng, data):
    """Alter the header of the first of the messages, or all of them."""
    size = _HEADER.size if rng.random() < 0.8 else len(data)
    return mutated(rng, data[:size]) + data[size:]


@pytest.mark.parametrize("wire_type", ["float32", "int8", "bfloat16", "shared memory"])
def test_altered_messages_are_a_broken_connection(wire_type, connected):
    rng, refused = random.Random(20170103), 0
    shares = wire_type == "shared memory"
    form = MANIFEST._replace(may_share=shares, wire_type="float32" if shares else wire_type)
    for _ in range(50):
        (sender, reader), (line, altered_line) = connected(), connected()
        own, theirs = buffers((sender, reader)) if shares else (None, None)
        sending, receiving = Channel("ps:0", sender, own), Channel("worker:0", altered_line, theirs)
        for step in (1, 2):
            sending.send(form, step, ARRAYS, never_lost)
        line.sendall(altered(rng, reader.recv(1 << 20)))
        line.close()
        try:
            for step in (1, 2):
                assert len(receiving.receive(form, step, never_lost)) == len(ARRAYS)
        except ExchangeError:
            refused += 1
    assert refused > 10


def test_a_header_may_name_16_gib_and_no_memory_is_taken(connected):
    line, reader = connected()
    channel = Channel("ps:0", reader)
    line.sendall(_HEADER.pack(*_Header(_MARK, b"unknown!", 1, 0, 1 << 34, 0, 0)) + bytes(1 << 16))
    line.close()
    tracemalloc.start()
    try:
        with pytest.raises(ExchangeError, match="is gone"):
            channel.receive(MANIFEST, 2, never_lost)
        assert tracemalloc.get_traced_memory()[1] < 1 << 24
    finally:
        tracemalloc.stop()


def test_a_message_of_a_step_that_nobody_waits_for_is_skipped(connected):
    near, far = connected()
    sending, receiving = Channel("worker:0", near), Channel("ps:0", far)
    sending.send(MANIFEST._replace(name="another"), 1, ARRAYS, never_lost)
    sending.send(MANIFEST, 2, ARRAYS, never_lost)
    found = receiving.receive(MANIFEST, 2, never_lost)
    assert all(np.array_equal(one, two) for one, two in zip(found, ARRAYS, strict=True))


def test_more_messages_given_back_than_were_sent_are_a_broken_connection(connected):
    pair, (line, reader) = connected(), connected()
    channel = Channel("ps:0", reader, buffers(pair)[0])
    line.sendall(_HEADER.pack(*_Header(_MARK, MANIFEST.mark, 1, 0, 0, 0, 1)))
    with pytest.raises(ExchangeError, match="gave 1 messages back, of 0"):
        channel.receive(MANIFEST, 1, never_lost)


@pytest.mark.parametrize("count", [1 << 63, (1 << 23) + 1])
def test_a_ring_neighbour_that_reports_impossible_counts_is_a_broken_connection(count, connected):
    sender, reader = connected()
    with ThreadPoolExecutor(2) as pool:
        made = pool.submit(make_neighbour, "worker:0", sender, sends=True, may_share=True)
        neighbour = make_neighbour("worker:1", reader, sends=False, may_share=True)
        made.result()
    if type(neighbour) is Neighbour:
        pytest.skip("the system has no memory of this kind")
    sender.setblocking(True)
    sender.sendall(_MESSAGE.pack(count, False))
    select.select([reader], [], [], 10)
    with pytest.raises(ExchangeError, match="a count that is not possible"):
        neighbour.receive(np.empty(9, np.uint8))
