"""A variable in shards is one variable to Keras; what would be another thing for each shard is refused."""

import numpy as np
import pytest

from tfdist.errors import ConfigError

tf = pytest.importorskip("tensorflow")

from tfdist.strategies.variable_partitioner import Partitioner, Sharded  # noqa: E402
from tfdist.training.fit import fit  # noqa: E402
from tfdist.training.parameter_servers.sharded_keras_variables import (  # noqa: E402
    check_parts,
    parts_of,
    variables_read_in_place,
)
from tfdist.training.predict import predict  # noqa: E402  # after the check that TensorFlow is there

keras = tf.keras
ROWS = 10


@pytest.fixture
def strategy():
    return tf.distribute.OneDeviceStrategy("/device:CPU:0")


def cut(shards=3):
    return tf.variable_creator_scope(Partitioner(min_shard_bytes=16, max_shards=shards))


def table():
    return np.arange(ROWS * 4, dtype="float32").reshape(ROWS, 4)


def test_shards_are_as_even_as_can_be():
    with cut():
        variable = tf.Variable(table(), name="table")

    assert isinstance(variable, Sharded)
    assert [each.shape[0] for each in variable.variables] == [4, 3, 3]
    assert np.array_equal(variable, table())
    assert np.asarray(variable, dtype="float64").dtype == np.float64


@pytest.mark.parametrize("indices", [[9, 0, 4, 3, 0], [[7, 1], [2, 8]], []])
def test_rows_come_in_the_order_of_the_indices(indices):
    with cut():
        variable = tf.Variable(table())
    indices = np.array(indices, "int32")

    assert np.array_equal(tf.gather(variable, indices), table()[indices])


def ancestors(operation):
    """Return an operation, and all operations that its result depends on."""
    found = {operation}
    for each in operation.inputs:
        found |= ancestors(each.op)
    return found


@pytest.mark.skipif(keras.__version__ < "3", reason="Keras 2 reads for itself")
@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
@pytest.mark.parametrize("mirrored", [True, False])
def test_of_an_embedding_nothing_but_rows_is_read_or_cast(mirrored, policy):
    make = tf.distribute.MirroredStrategy if mirrored else tf.distribute.OneDeviceStrategy
    strategy = make(["CPU:0"] if mirrored else "CPU:0")
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((3,), dtype="int32"), keras.layers.Embedding(997, 4, dtype=policy)]
        )

    @tf.function(autograph=False)
    def rows(ids):
        return strategy.run(model, args=(ids,))

    ids = tf.constant([[5, 0, 996]])
    with variables_read_in_place(model):
        used = ancestors(rows.get_concrete_function(ids).graph.outputs[0].op)
    assert not [each for one in used for each in one.outputs if each.shape.rank and each.shape[0] == 997]
    expected = model.get_weights()[0][[5, 0, 996]].astype("float32" if policy == "float32" else "float16")
    assert np.array_equal(strategy.experimental_local_results(rows(ids))[0][0], expected)


@pytest.mark.parametrize("value", [3.0, [1.0, 2.0]])
def test_small_variables_are_not_cut(value):
    with cut():
        variable = tf.Variable(value)

    assert not isinstance(variable, Sharded)


def test_an_initial_value_is_computed_once():
    calls = []
    with cut():
        tf.Variable(lambda: calls.append(1) or tf.zeros([ROWS, 4]))

    assert calls == [1]


def test_a_scope_within_a_scope_does_not_cut_shards_again():
    partitioner = Partitioner(min_shard_bytes=16, max_shards=2)
    with tf.variable_creator_scope(partitioner), tf.variable_creator_scope(partitioner):
        variable = tf.Variable(table())

    assert [each.shape.as_list() for each in variable.variables] == [[5, 4], [5, 4]]


def model(optimizer="sgd", **options):
    keras.utils.set_random_seed(2)
    inputs = keras.Input((2,), dtype="int32")
    words = keras.layers.Flatten()(keras.layers.Embedding(ROWS, 4, **options)(inputs))
    made = keras.Model(inputs, keras.layers.Dense(1)(words))
    made.compile(optimizer, "mse")
    return made


def data():
    x = np.random.default_rng(1).integers(0, ROWS, size=(12, 2)).astype("int32")
    return tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1, keepdims=True).astype("float32"))).batch(4)


@pytest.mark.parametrize("name", ["SGD", "Adam", "Adagrad", "Ftrl"])
def test_every_optimizer_that_works_on_each_number_does_the_same_in_shards(strategy, name):
    found = []
    for scope in (cut(1), cut()):
        with strategy.scope(), scope:
            made = model(getattr(keras.optimizers, name)(0.01))
        fit(made, data(), strategy=strategy, epochs=2, verbose=0)
        weights = np.concatenate([np.ravel(each) for each in made.get_weights()])
        found.append((weights, predict(made, data(), strategy=strategy)))

    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("optimizer", "options", "words"),
    [
        (lambda: keras.optimizers.SGD(0.1, clipnorm=1.0), {}, "clipnorm would compute something else"),
        (
            lambda: keras.optimizers.SGD(0.1),
            {"embeddings_constraint": "non_neg"},
            "a constraint would compute",
        ),
        (lambda: keras.optimizers.Adafactor(0.1), {}, "the optimizer Adafactor would compute"),
    ],
)
def test_refuses_what_would_be_another_thing_for_each_shard(strategy, optimizer, options, words):
    with strategy.scope(), cut():
        made = model(optimizer(), **options)
    with pytest.raises(ConfigError, match=words):
        fit(made, data(), strategy=strategy, verbose=0)


@pytest.mark.skipif(keras.__version__ < "3", reason="Keras 2 lists the variables of a model part by part")
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_loop_of_ones_own_trains_shards_as_the_whole(optimizer):
    def trained(**scope):
        keras.utils.set_random_seed(1)
        with tf.variable_creator_scope(Partitioner(**scope)):
            words, number = keras.Input((3,), dtype="int32"), keras.Input((40,))
            embedded = keras.layers.Flatten()(keras.layers.Embedding(50, 8)(words))
            joined = keras.layers.Concatenate()([embedded, keras.layers.Dense(30, "tanh")(number)])
            model = keras.Model([words, number], keras.layers.Dense(1)(joined))
            own = keras.optimizers.get(optimizer)
            own.build(model.trainable_variables)
        rng = np.random.default_rng(2)
        x = rng.integers(0, 50, (16, 3)).astype("int32"), rng.normal(size=(16, 40)).astype("float32")

        @tf.function
        def step():
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(x) - 1.0))
            gradients = tape.gradient(loss, model.trainable_variables)
            own.apply_gradients(zip(gradients, model.trainable_variables))  # noqa: B905  # AutoGraph
            return loss

        losses = [float(step()) for _ in range(4)]
        return losses, model, own

    (losses, model, own), (expected, whole, _) = (
        trained(min_shard_bytes=least, max_shards=3) for least in (500, 1 << 20)
    )

    assert sum(len(parts_of([weight])) > 1 for weight in model.weights) == 2
    assert losses == pytest.approx(expected, rel=1e-5)
    for ours, theirs in zip(model.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
    model.compile(own, "mse")
    with pytest.raises(ConfigError, match="has updated whole variables in a loop of your own"):
        check_parts(model)
