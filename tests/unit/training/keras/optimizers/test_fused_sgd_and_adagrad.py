"""Check that fused updates give the bits of Keras's own, with all that is around an update.

But for rounding where SGD comes after clipping by the global norm.
"""

import contextlib

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.training.keras.optimizers.fused_sgd_and_adagrad import fused, fused_keras_2

keras = tf.keras

IS_KERAS_2 = keras.__version__ < "3"
of_keras_3 = pytest.mark.skipif(IS_KERAS_2, reason="Keras 2 keeps its own updates, but for SGD")
of_keras_2 = pytest.mark.skipif(not IS_KERAS_2, reason="this is Keras 3")

WEIGHTS = 5  # of the model here
SETTINGS = {
    "plain": {"global_clipnorm": 0.1},
    "momentum": {"momentum": 0.9, "clipnorm": 0.1, "weight_decay": 0.01},
    "nesterov": {
        "dtype": "float64",
        "momentum": 0.95,
        "nesterov": True,
        "use_ema": True,
        "ema_overwrite_frequency": 2,
    },
    "accumulated": {
        "momentum": 0.9,
        "gradient_accumulation_steps": 2,
        "learning_rate": keras.optimizers.schedules.CosineDecay(0.3, 5),
    },
    "adagrad": {"kind": keras.optimizers.Adagrad, "clipnorm": 0.1},
    "adagrad in 64 bits": {"kind": keras.optimizers.Adagrad, "dtype": "float64", "weight_decay": 0.01},
}


def trained(dtype="float32", **settings):
    """Return weights and slots after some steps, of a dense layer and rows of an embedding."""
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((7,), dtype="int32"),
            keras.layers.Embedding(20, 33, dtype=dtype),
            keras.layers.Flatten(dtype=dtype),
            keras.layers.Dense(65, activation="tanh", dtype=dtype),
            keras.layers.Dense(3, dtype=dtype),
        ]
    )
    kind = settings.pop("kind", keras.optimizers.SGD)
    optimizer = kind(**{"learning_rate": 0.3, **settings})
    as_it_is = {} if IS_KERAS_2 else {"auto_scale_loss": False}
    model.compile(optimizer, keras.losses.MeanSquaredError(), jit_compile=False, **as_it_is)
    chance = np.random.default_rng(5)
    x, y = chance.integers(0, 20, (24, 7)), chance.normal(0, 1, (24, 3))
    tfdist.fit(model, tf.data.Dataset.from_tensor_slices((x, y)).batch(4), verbose=0)
    return [np.asarray(each) for each in (*model.get_weights(), *(v.numpy() for v in optimizer.variables))]


@of_keras_3
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_gives_the_bits_of_keras(settings, monkeypatch):
    ours = trained(**settings)
    monkeypatch.setattr(
        "tfdist.training.keras.optimizers.optimizer.fused", lambda optimizer: contextlib.nullcontext()
    )
    kerass = trained(**settings)
    for found, expected in zip(ours, kerass, strict=True):
        if "global_clipnorm" in settings:
            # Of gradient x share x rate TensorFlow's optimizer of graphs multiplies the two numbers first.
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-8)
        else:
            np.testing.assert_array_equal(found, expected)


@of_keras_2
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("nesterov", [False, True])
def test_keras_2_gets_its_bits(momentum, nesterov, monkeypatch):
    settings = {"momentum": momentum, "nesterov": nesterov, "clipnorm": 0.1, "weight_decay": 0.01}
    ours = trained(**settings)
    monkeypatch.setattr(
        "tfdist.training.keras.steps.keras2_step.fused_keras_2", lambda optimizer: contextlib.nullcontext()
    )
    kerass = trained(**settings)
    for found, expected in zip(ours[:WEIGHTS], kerass[:WEIGHTS], strict=True):
        np.testing.assert_array_equal(found, expected)


@of_keras_2
@pytest.mark.parametrize(
    ("momentum", "of_slots"), [(0.0, []), (0.9, ["ResourceApplyKerasMomentum"])], ids=["plain", "momentum"]
)
def test_keras_2_adds_to_a_weight_nothing_that_it_reads_from_a_slot(momentum, of_slots):
    optimizer = keras.optimizers.SGD(0.1, momentum=momentum)
    variables = [tf.Variable(np.ones([4, 3], "float32")), tf.Variable(np.ones([4, 3], "float32"))]
    optimizer.build(variables)

    @tf.function(autograph=False)
    def update():
        rows = tf.IndexedSlices(tf.ones([1, 3]), tf.constant([2]), tf.constant([4, 3]))
        sparse = [] if momentum else [(rows, variables[1])]
        optimizer.apply_gradients([(tf.ones([4, 3]), variables[0]), *sparse])

    with fused_keras_2(optimizer):
        graph = update.get_concrete_function().graph
    slots = {id(inside) for outside, inside in graph.captures if outside is optimizer.momentums[0].handle}
    users = [each.type for each in graph.get_operations() if slots & set(map(id, each.inputs))]
    assert users == of_slots


@of_keras_3
def test_is_one_operation_for_dense_gradients_alone():
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    variables = [keras.Variable(np.ones([4, 3], "float32")), keras.Variable(np.ones([4, 3], "float32"))]
    optimizer.build(variables)

    @tf.function(autograph=False)
    def update():
        rows = tf.IndexedSlices(tf.ones([1, 3]), tf.constant([2]), tf.constant([4, 3]))
        optimizer.apply([tf.ones([4, 3]), rows], variables)

    with fused(optimizer), fused(optimizer):
        graph = update.get_concrete_function().graph
    kinds = [each.type for each in graph.get_operations()]
    assert kinds.count("ResourceApplyKerasMomentum") == 1
    assert "AssignAddVariableOp" in kinds or "ResourceScatterAdd" in kinds


def own(kind):
    return type("Own", (kind,), {})


@of_keras_3
@pytest.mark.parametrize(
    "optimizer",
    [
        keras.optimizers.RMSprop(),
        keras.optimizers.Adam(),
        own(keras.optimizers.SGD)(),
    ],
    ids=["another", "Adam, whose operation rounds in another way", "derived from SGD"],
)
def test_leaves_others_alone(optimizer):
    with fused(optimizer), fused_keras_2(optimizer):
        assert "update_step" not in vars(optimizer)


@of_keras_3
def test_adagrad_reads_no_row_that_stays():
    optimizer = keras.optimizers.Adagrad(0.1)
    table = keras.Variable(np.ones([4, 3], "float32"))
    optimizer.build([table])

    @tf.function(autograph=False)
    def update():
        rows = tf.IndexedSlices(tf.ones([1, 3]), tf.constant([2]), tf.constant([4, 3]))
        optimizer.apply([rows], [table])

    with fused(optimizer):
        graph = update.get_concrete_function().graph
    handles = {id(inside) for outside, inside in graph.captures if outside.dtype == tf.resource}
    kinds = {each.type for each in graph.get_operations() if handles & set(map(id, each.inputs))}
    assert {"ResourceScatterAdd", "ResourceGather", "ResourceScatterSub"} <= kinds
    reads = [each for each in graph.get_operations() if each.type == "ReadVariableOp"]
    assert all(each.outputs[0].shape.rank in (0, None) for each in reads)
