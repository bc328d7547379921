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

from tfdist.transport import channel
from tfdist.transport.channel import _HEADER, _MARK, _MOST_FUNCTIONS, Channel, SilenceCheck, _Header
from tfdist.transport.listen_and_call import ExchangeError
from tfdist.transport.neighbour_connection import _MESSAGE, Neighbour, make_neighbour
from tfdist.transport.shared_memory import SharedBuffers, share_memory

ARRAYS = [np.arange(700, dtype="float32"), np.arange(6.0).reshape(2, 3)]
MANIFEST = manifest_of(ARRAYS)
WAYS = ("down", "up")


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


def test_a_pause_of_both_ends_is_no_silence(monkeypatch):
    now, counted = [1000.0], []
    monkeypatch.setattr(channel.time, "monotonic", lambda: now[0])
    check = SilenceCheck(lambda seconds: counted.append(seconds) or "")
    for passed in (3.0, 1.0, 1.5, 10_000.0, 1.0):
        now[0] += passed
        check.ask()
    check.renew()
    check.ask()
    assert counted == [1.0, 2.0, 3.5, 13.5, 14.5, 1.0]


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


def passed(sending, receiving, form, step, arrays):
    """Send arrays over a channel; return what comes."""
    sending.send(form, step, arrays, never_lost)
    return receiving.receive(form, step, never_lost)


def test_codecs_of_functions_that_others_have_replaced_are_dropped_at_both_ends(connected):
    near, far = connected()
    sending, receiving = Channel("worker:0", near), Channel("ps:0", far)
    forms = [
        [MANIFEST._replace(name=f"{way} {number}", wire_type="int8", is_state=way == "down") for way in WAYS]
        for number in range(60)
    ]
    for step, of_function in enumerate(forms, 1):
        for form in of_function:
            passed(sending, receiving, form, step, ARRAYS)
    kept = {form.mark for of_function in forms[-_MOST_FUNCTIONS:] for form in of_function}
    assert set(sending._sent_codecs._codecs) == kept
    assert set(receiving._received_codecs) == kept

    [came, _] = passed(sending, receiving, forms[0][0], len(forms) + 1, ARRAYS)
    assert np.array_equal(came, ARRAYS[0])  # both ends begin again: with whole values


def test_rounding_errors_of_a_function_outlast_others_that_are_used_in_between(connected):
    near, far = connected()
    sending, receiving = Channel("worker:0", near), Channel("ps:0", far)
    gradient = [np.random.default_rng(0).normal(size=1000).astype("float32")]
    form = manifest_of(gradient, wire_type="int8", is_state=False, name="up 0")
    steps, total = iter(range(1, 10_000)), np.zeros(1000)
    for turn in range(3 * _MOST_FUNCTIONS):
        total += passed(sending, receiving, form, next(steps), gradient)[0]
        other = form._replace(name=f"up {turn + 1}")  # which is used for longer than many are kept
        for _ in range(2 * _MOST_FUNCTIONS):
            passed(sending, receiving, other, next(steps), gradient)
    step = np.abs(gradient[0]).max() / 127
    assert np.abs(total - 3 * _MOST_FUNCTIONS * gradient[0].astype("float64")).max() < step
