"""Exchanges of a graph run in the order of the program, also those in branches and loops."""

import time
from collections import defaultdict
from types import SimpleNamespace

import pytest

tf = pytest.importorskip("tensorflow")

from tfdist.strategies.cross_device_ops import RingAllReduce  # noqa: E402  # after the check that TensorFlow is there
from tfdist.transport.ring import Taken  # noqa: E402


class OneTaskRing:
    """A ring of one task, which notes what is added up."""

    def __init__(self):
        self.added, self.taken = [], defaultdict(Taken)

    def add_up(self, payload):
        self.added.append(float(payload.wire[0]))


@pytest.fixture(scope="module")
def strategy():
    return tf.distribute.MultiWorkerMirroredStrategy()  # of one worker


@pytest.fixture
def exchanges(strategy):
    return RingAllReduce(strategy.extended._cross_device_ops, OneTaskRing(), "float32", None)


def late(take):
    """Return a one that is computed late, by an operation that TensorFlow does not order."""

    def wait(value):
        time.sleep(0.1)
        return value

    return tf.numpy_function(wait, [tf.cast(take, tf.float32)], tf.float32, stateful=False)


def exchange(exchanges, number):
    of_replicas = SimpleNamespace(values=(tf.reshape(number, [1]),))
    [total] = exchanges.all_reduce(tf.distribute.ReduceOp.SUM, [of_replicas], None)
    return total


def in_branch(exchanges, take, weights):
    late_one = exchange(exchanges, late(take))
    return late_one, tf.cond(take, lambda: exchange(exchanges, weights), lambda: tf.zeros([1]))


def in_other_branch(exchanges, take, weights):
    late_one = exchange(exchanges, late(take))
    leave = tf.logical_not(take)
    return late_one, tf.cond(
        leave, lambda: exchange(exchanges, tf.zeros([1])), lambda: exchange(exchanges, weights)
    )


def in_branch_of_branch(exchanges, take, weights):
    late_one = exchange(exchanges, late(take))

    def inner():
        return tf.cond(take, lambda: exchange(exchanges, weights), lambda: tf.zeros([1]))

    return late_one, tf.cond(take, inner, lambda: tf.zeros([1]))


def in_branches_after_a_call(exchanges, take, weights):
    late_one = exchange(exchanges, late(take))
    called = tf.function(lambda value: value + 1.0, autograph=False)

    def inner():
        one = called(weights)
        leave = tf.logical_not(tf.reduce_all(one > 0.0))
        return tf.cond(
            leave, lambda: exchange(exchanges, tf.zeros([1])), lambda: exchange(exchanges, weights)
        )

    return late_one, tf.cond(take, inner, lambda: tf.zeros([1]))


def in_branch_of_a_step(exchanges, take, weights):
    """A step of a loop, which adds gradients and counts up, and weights in a branch after the gradients."""

    def step():
        [gradient] = exchanges.weighted_sums([weights * 0.5], tf.constant(1.0, tf.float64), is_mean=False)
        counted = exchange(exchanges, late(take))

        def assigned():
            weights.assign(exchange(exchanges, tf.identity(weights)))
            return tf.constant(True)

        tf.cond(tf.reduce_all(tf.math.is_finite(gradient)), assigned, lambda: tf.constant(False))
        return counted

    return tf.while_loop(
        lambda count, _: count < 2,
        lambda count, _: (count + 1, tf.cond(take, step, lambda: tf.zeros([1]))),
        [tf.constant(0), tf.zeros([1])],
        parallel_iterations=1,
    )


def in_loop(exchanges, take, weights):
    late_one = exchange(exchanges, late(take))

    def body(count):
        return count + tf.cast(exchange(exchanges, weights)[0], tf.int32)

    return late_one, tf.while_loop(lambda count: count < 6, body, [tf.constant(0)])


def after_branch(exchanges, take, weights):
    first = tf.cond(take, lambda: exchange(exchanges, late(take)), lambda: tf.zeros([1]))
    return first, exchange(exchanges, weights)


def after_gradients(exchanges, take, weights):
    gradient = tf.reshape(late(take), [1])
    [total] = exchanges.weighted_sums([gradient], tf.constant(1.0, tf.float64), is_mean=False)
    return total, tf.cond(take, lambda: exchange(exchanges, weights), lambda: tf.zeros([1]))


PROGRAMS = {
    in_branch: [1.0, 2.0],
    in_other_branch: [1.0, 2.0],
    in_branch_of_branch: [1.0, 2.0],
    in_branch_of_a_step: 2 * [0.5 * 2.0, 1.0, 2.0],
    in_branches_after_a_call: [1.0, 2.0],
    in_loop: [1.0, 2.0, 2.0, 2.0],
    after_branch: [1.0, 2.0],
    after_gradients: [1.0, 2.0],
}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_exchanges_run_in_the_order_of_the_program(exchanges, strategy, program):
    weights = tf.Variable([2.0], trainable=False)
    run = tf.function(lambda take: program(exchanges, take, weights), autograph=False, reduce_retracing=True)

    for _ in range(3):
        exchanges.ring.added.clear()
        run(tf.constant(True))
        assert exchanges.ring.added == PROGRAMS[program]
