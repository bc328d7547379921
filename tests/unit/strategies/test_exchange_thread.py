"""Exchanges run one after the other in a thread, in the order in which they are submitted."""

import threading

import pytest

from tfdist.strategies.exchange_thread import ExchangeThread


def test_exchanges_run_in_order_and_return_their_results():
    thread, order, may_go = ExchangeThread(), [], threading.Event()

    def exchange(number):
        may_go.wait(60)
        order.append(number)
        return number * number

    futures = [thread.submit(lambda number=number: exchange(number)) for number in range(5)]
    assert not any(future.done() for future in futures)
    may_go.set()

    assert thread.run(lambda: exchange(5)) == 25  # after all that were submitted before
    assert [future.result(60) for future in futures] == [0, 1, 4, 9, 16]
    assert order == [0, 1, 2, 3, 4, 5]


def test_an_error_reaches_the_caller_that_asks_and_the_next_exchange_runs():
    thread = ExchangeThread()

    def fail():
        raise OSError("gone")

    failed, next_one = thread.submit(fail), thread.submit(lambda: "next")

    with pytest.raises(OSError, match="gone"):
        failed.result(60)
    assert next_one.result(60) == "next"
    with pytest.raises(OSError, match="gone"):
        thread.run(fail)


def test_an_exchange_runs_in_the_callers_own_thread_while_no_other_is_submitted():
    thread = ExchangeThread()

    assert thread.run(threading.current_thread) is threading.current_thread()
    assert thread.submit(threading.current_thread).result(60).name == "tfdist-exchange"
