import numpy as np
import pytest
import tensorflow as tf

keras = tf.keras
if keras.__version__ < "3":
    pytest.skip("LazyAdam is made for Keras 3", allow_module_level=True)

import tfdist  # noqa: E402
from tfdist.errors import ConfigError  # noqa: E402


def _sparse(values, indices):
    return tf.IndexedSlices(tf.constant(values), tf.constant(indices), tf.constant([4, 2], tf.int64))


def _apply(optimizer, table, gradients):
    optimizer.build([table])
    step = tf.function(lambda gradient: optimizer.apply([gradient], [table]), autograph=False)
    for gradient in gradients:
        step(gradient)
    return table.numpy()


def test_rows_in_every_batch_are_updated_as_by_adam():
    gradients = [_sparse(np.full((4, 2), value), [0, 1, 2, 3]) for value in (0.5, -0.25, 1.0)]
    tables = [keras.Variable(np.arange(8.0).reshape(4, 2), dtype="float64") for _ in range(2)]
    lazy = _apply(tfdist.LazyAdam(0.1), tables[0], gradients)
    full = _apply(keras.optimizers.Adam(0.1), tables[1], gradients)

    np.testing.assert_allclose(lazy, full, rtol=1e-12)


def test_other_rows_keep_weights_and_moments():
    optimizer = tfdist.LazyAdam(0.1)
    table = keras.Variable(np.arange(8.0).reshape(4, 2), dtype="float64")
    one, other = _sparse(np.ones((1, 2)), [1]), _sparse(np.ones((1, 2)), [3])
    first = _apply(optimizer, table, [one])
    then = _apply(optimizer, table, [other, other])

    np.testing.assert_array_equal(then[:3], first[:3])
    assert (then[3] != first[3]).all()
    moments = [variable.numpy()[1] for variable in optimizer.variables if variable.shape == (4, 2)]
    np.testing.assert_allclose(moments, [[0.1, 0.1], [0.001, 0.001]])


def test_a_row_that_is_read_twice_gets_the_sum():
    tables = [keras.Variable(np.ones((4, 2)), dtype="float64") for _ in range(2)]
    twice = _apply(tfdist.LazyAdam(0.1), tables[0], [_sparse([[1.0, 2.0], [0.5, 0.5]], [2, 2])])
    once = _apply(tfdist.LazyAdam(0.1), tables[1], [_sparse([[1.5, 2.5]], [2])])

    np.testing.assert_array_equal(twice, once)


def test_dense_weights_and_files_are_those_of_adam(tmp_path):
    models = []
    for kind in (tfdist.LazyAdam, keras.optimizers.Adam):
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        model.compile(kind(0.1, weight_decay=0.01), "mse")
        tfdist.fit(model, np.ones((8, 3), "float32"), np.ones((8, 2), "float32"), epochs=2, verbose=0)
        models.append(model)
    np.testing.assert_array_equal(*(model.get_weights()[0] for model in models))

    models[0].save(tmp_path / "model.keras")
    assert isinstance(keras.models.load_model(tmp_path / "model.keras").optimizer, tfdist.LazyAdam)


def test_amsgrad_is_refused_for_embeddings():
    table = keras.Variable(np.ones((4, 2)), dtype="float64")
    with pytest.raises(ConfigError, match="LazyAdam: has amsgrad, which is not supported for embeddings"):
        _apply(tfdist.LazyAdam(0.1, amsgrad=True), table, [_sparse(np.ones((1, 2)), [1])])


def test_only_a_process_that_uses_or_loads_it_has_it_among_the_registered_classes(tmp_path, run_program):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(tfdist.LazyAdam(0.1), "mse")
    model.save(tmp_path / "model.keras")

    run = run_program(f"""
import keras

import tfdist

tfdist.start()
assert "tfdist>LazyAdam" not in keras.saving.get_custom_objects()
print(type(keras.models.load_model({str(tmp_path / "model.keras")!r}).optimizer).__name__)
""")

    assert run.stdout == "LazyAdam\n", run.stderr
