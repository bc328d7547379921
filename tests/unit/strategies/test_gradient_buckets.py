"""Gradients leave in buckets, those of the last layers first."""

import gc
import threading
import weakref
from collections import defaultdict

import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies.exchange_thread import ExchangeThread
from tfdist.strategies.gradient_buckets import GradientBuckets
from tfdist.strategies.plan_buckets import BucketBytes
from tfdist.transport.ring import Taken


class _Alone:
    """The ring of a task that receives what it sends once more."""

    def __init__(self):
        self.exchanged, self.taken = [], defaultdict(Taken)

    def add_up(self, payload):
        self.taken[payload.name].seconds += 1
        self.exchanged.append((payload.name, len(payload.wire)))
        payload.load(0, len(payload.wire))
        payload.add(0, payload.wire.copy())
        payload.unload()


def _run(buckets, gradients, weight, factor, steps=1):
    def step():
        sums, have_left = buckets.sums(gradients(), weight, factor, place=0)
        with tf.control_dependencies([have_left]):
            return [tf.identity(total) for total in sums]

    traced = tf.function(step, autograph=False)
    return [[total.numpy() for total in traced()] for _ in range(steps)]


def test_the_first_bucket_leaves_while_gradients_are_computed():
    ring, thread = _Alone(), ExchangeThread()
    buckets = GradientBuckets(ring, thread, "float32")
    has_left = threading.Event()
    exchange = ring.add_up

    def add_up(payload):
        exchange(payload)
        if payload.name == "float32":
            has_left.set()

    ring.add_up = add_up

    def computed_last():
        assert has_left.wait(60)  # which never comes if all gradients have to be there first
        return np.full(10, 2, np.float32)

    def gradients():
        late = tf.ensure_shape(tf.numpy_function(computed_last, [], tf.float32), [10])
        return [late, tf.ones([1 << 18])]

    weight = tf.constant(4.0, tf.float64)
    [[late, early]] = _run(buckets, gradients, weight, weight)

    assert late.tolist() == [2.0] * 10  # a half of 2 from each of two tasks
    assert (early == 1).all()
    assert ring.exchanged == [("float64", 1), ("float32", 1 << 18), ("float32", 10)]
    assert ring.taken["float32"].hidden > 0


def test_sums_without_a_weight_are_not_divided():
    one = tf.constant(3.0, tf.float64)
    [[total]] = _run(
        GradientBuckets(_Alone(), ExchangeThread(), "float32"), lambda: [tf.ones([4])], None, one
    )

    assert total.tolist() == [6.0] * 4


def test_a_mean_over_nothing_is_zero():
    zero = tf.zeros([], tf.float64)
    [[total]] = _run(
        GradientBuckets(_Alone(), ExchangeThread(), "float32"), lambda: [tf.ones([4])], zero, zero
    )

    assert total.tolist() == [0.0] * 4


def test_8_bits_add_what_they_round_away_to_the_same_gradients_again():
    """Two buckets of one shape do not share what is rounded away."""
    values = [np.linspace(-1, 1, 256), np.linspace(-5, 9, 256)]
    gradients = [tf.constant(value, tf.float32) for value in values]
    buckets = GradientBuckets(_Alone(), ExchangeThread(), "int8")
    buckets.bucket_bytes = BucketBytes(first=1, others=1)
    one = tf.constant(1.0, tf.float64)
    steps = _run(buckets, lambda: [tf.identity(gradient) for gradient in gradients], None, one, steps=50)

    for place, value in enumerate(values):
        mean = np.mean([step[place] for step in steps], axis=0)
        assert mean == pytest.approx(2 * value, abs=0.02 * np.abs(value).max())


def test_steps_that_failed_leave_no_sums_behind_for_ever():
    buckets = GradientBuckets(_Alone(), ExchangeThread(), "float32")
    for _ in range(100):
        buckets._hand_over(
            weakref.ref(buckets._of_none),
            (0, 0),
            False,
            False,
            np.int64(-1),
            1.0,
            1.0,
            np.ones(4, np.float32),
        )

    assert len(buckets._steps) <= 16


def test_rounding_errors_that_are_put_back_give_the_sums_of_a_run_that_went_on():
    chance = np.random.default_rng(0)
    gradients = [
        tf.constant(chance.normal(size=300), tf.float32),
        tf.constant(chance.normal(size=5), tf.float32),
    ]
    one = tf.constant(1.0, tf.float64)

    def made():
        return GradientBuckets(_Alone(), ExchangeThread(), "int8")

    straight, before, after = made(), made(), made()
    expected = _run(straight, lambda: gradients, None, one, steps=4)
    _run(before, lambda: gradients, None, one, steps=2)
    after.rounding_errors = {name: error.copy() for name, error in before.rounding_errors.items()}
    found = _run(after, lambda: gradients, None, one, steps=2)
    assert before.rounding_errors
    np.testing.assert_array_equal(np.concatenate(found[-1]), np.concatenate(expected[-1]))
    fresh = _run(made(), lambda: gradients, None, one, steps=2)
    assert not np.array_equal(np.concatenate(fresh[-1]), np.concatenate(expected[-1]))


class _Model:
    pass


def test_a_model_begins_without_what_another_one_has_rounded_away():
    gradient = tf.constant(np.random.default_rng(0).normal(size=300), tf.float32)
    one = tf.constant(1.0, tf.float64)
    buckets, models = GradientBuckets(_Alone(), ExchangeThread(), "int8"), [_Model(), _Model()]

    def trained(model, steps):
        buckets.begin_step(model)
        return _run(buckets, lambda: [gradient], None, one, steps=steps)

    first = trained(models[0], 3)
    np.testing.assert_array_equal(trained(models[1], 3), first)
    assert not np.array_equal(trained(models[0], 1), first[:1])


def test_an_eager_step_rounds_each_of_its_exchanges_apart():
    gradients = [tf.constant(np.linspace(-1, end, 256), tf.float32) for end in (1, 9)]
    one, model = tf.constant(1.0, tf.float64), _Model()
    buckets = GradientBuckets(_Alone(), ExchangeThread(), "int8")

    def step():
        buckets.begin_step(model)
        return [
            buckets.sums([gradient], None, one, buckets.place_in_eager_step())[0][0] for gradient in gradients
        ]

    steps = [step() for _ in range(5)]
    for place, gradient in enumerate(gradients):
        alone = GradientBuckets(_Alone(), ExchangeThread(), "int8")
        expected = _run(alone, lambda gradient=gradient: [gradient], None, one, steps=5)
        np.testing.assert_array_equal([sums[place] for sums in steps], [sums[0] for sums in expected])
    assert len(buckets.rounding_errors) == 2


def test_the_memory_of_a_model_goes_with_it():
    buckets, model = GradientBuckets(_Alone(), ExchangeThread(), "int8"), _Model()
    buckets.begin_step(model)
    _run(buckets, lambda: [tf.ones([4])], None, tf.constant(1.0, tf.float64))
    kept = weakref.ref(buckets._current)
    buckets.begin_step(other := _Model())
    del model
    gc.collect()
    assert kept() is None
    assert not buckets.rounding_errors
    del other
