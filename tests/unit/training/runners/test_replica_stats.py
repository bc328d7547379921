import time

import pytest
import tensorflow as tf

from tfdist.training.runners.multi_step import Totals, make_execution
from tfdist.training.runners.replica_stats import EXAMPLES, SECONDS, STEPS, Failure, ReplicaStats


@pytest.fixture
def replica_stats():
    return ReplicaStats(tf.distribute.OneDeviceStrategy("/device:CPU:0"))


def test_the_clock_is_read_before_and_after(replica_stats):
    @tf.function
    def measured(x):
        begun, x = replica_stats.begun(x)
        result = tf.while_loop(
            lambda now: now < begun + 0.2,
            lambda _: tf.timestamp(),
            [begun],
        )
        return replica_stats.ended(begun, result, tf.constant(1.0), 7)

    table = measured(tf.constant(1.0)).numpy()
    assert table[0, STEPS] == 1
    assert table[0, SECONDS] >= 0.2
    assert table[0, EXAMPLES] == 7
    assert replica_stats.failure(table) is None


@pytest.mark.parametrize(
    ("bad", "kind", "stops", "ran"),
    [
        (float("nan"), "NaN", True, 3),
        (float("-inf"), "infinite", True, 3),
        (float("nan"), "NaN", False, 5),
        (0.0, None, True, 5),
    ],
)
def test_an_execution_ends_with_the_first_loss_that_is_no_number(replica_stats, bad, kind, stops, ran):
    losses = tf.data.Dataset.from_tensor_slices([1.0, 1.0, bad, 1.0, 1.0])

    def step(loss, totals):
        return Totals((totals.metrics[0] + loss,), totals.stats + replica_stats.ended(None, [], loss, 1))

    execution = make_execution(
        step, is_failing=(lambda totals: replica_stats.is_failing(totals.stats)) if stops else None
    )
    done, ((total,), table), _ = tf.function(execution, autograph=False)(
        iter(losses), 5, Totals((0.0,), replica_stats.zeros())
    )
    assert int(done) == ran
    assert replica_stats.failure(table) == (kind and Failure(kind, (0,), 1))
    assert bool(tf.math.is_finite(total)) == (kind is None)


def test_what_is_waited_for_data_is_told_from_what_a_step_takes(replica_stats):
    def slow():
        for _ in range(3):
            time.sleep(0.3)
            yield 1.0

    def step(value, totals):
        begun, value = replica_stats.begun(value)
        until = tf.while_loop(lambda now: now < begun + 0.1, lambda _: tf.timestamp(), [begun])
        return Totals(
            (totals.metrics[0] + value,), totals.stats + replica_stats.ended(begun, until, value, 1)
        )

    losses = tf.data.Dataset.from_generator(slow, output_signature=tf.TensorSpec([], tf.float32))
    execution = tf.function(make_execution(step), autograph=False)
    done, (_, table), waited = execution(iter(losses), 3, Totals((0.0,), replica_stats.zeros()))
    assert int(done) == 3
    assert float(waited) >= 0.25  # the first of them, at least, is made while nobody computes
    assert table[0, SECONDS].numpy() >= 0.3
    quick = tf.data.Dataset.from_tensors(1.0).repeat(3)
    # Several times: the process may stand still just while it waits.
    waits = [execution(iter(quick), 3, Totals((0.0,), replica_stats.zeros()))[2] for _ in range(3)]
    assert min(map(float, waits)) < 0.3


def test_the_replicas_are_told_apart(replica_stats):
    table = tf.constant([[0.1, 1, 0, 0, 9], [0.1, 1, 0, 1, 9], [0.1, 1, 2, 0, 9]], tf.float64)
    assert replica_stats.failure(table) == Failure("NaN", (1, 2), 3)


def test_fit_trains_where_operations_must_be_deterministic(run_program):
    """TensorFlow has no clock then, and steps that were traced before read it."""
    run = run_program("""
import numpy as np
import tensorflow as tf
import tfdist
tf.keras.utils.set_random_seed(1)
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
x = np.ones((8, 2), "float32")
losses = tfdist.fit(model, x, x[:, :1], verbose=0).history["loss"]
tf.config.experimental.enable_op_determinism()
losses += tfdist.fit(model, x, x[:, :1], verbose=0).history["loss"]
print(losses[1] < losses[0])
""")

    assert run.stdout == "True\n", run.stderr
