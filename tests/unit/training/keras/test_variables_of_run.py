"""The state of a model has the values of whole variables, whatever shards its variables are in."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from tfdist.strategies.variable_partitioner import Partitioner  # noqa: E402
from tfdist.training.keras.variables_of_run import State  # noqa: E402

keras = tf.keras
IS_KERAS_2 = getattr(keras, "__version__", "2") < "3"


def state_in(shards):
    """Return the state of a model with random slots, whose larger variables are in so many shards."""
    layers = [
        keras.layers.Dense(11, name="large"),
        keras.layers.Dense(7, name="other"),
        keras.layers.Dense(1),
    ]
    with tf.variable_creator_scope(Partitioner(min_shard_bytes=4, max_shards=shards)):
        model = keras.Sequential([keras.Input((5,)), *layers])
    model.compile(keras.optimizers.Adam(0.1, use_ema=True), "mse")
    state = State(model, tf.distribute.get_strategy(), [])
    rng = np.random.default_rng(shards)
    state.assign([rng.normal(size=value.shape) for value in state.values().values()])
    return state


@pytest.mark.skipif(IS_KERAS_2, reason="Keras 2 lists a variable's shards as variables")
@pytest.mark.parametrize(("saved", "resumed"), [(2, 3), (1, 2), (3, 1)])
def test_another_number_of_shards_takes_the_state(saved, resumed):
    theirs, mine = state_in(saved).values(), state_in(resumed)
    assert [value.shape for value in mine.values().values()] == [value.shape for value in theirs.values()]
    mine.assign(list(theirs.values()))
    for found, expected in zip(mine.values().values(), theirs.values(), strict=True):
        np.testing.assert_array_equal(found, expected)
