"""Data sets are prepared for TensorFlow: without the autotuner, and with sparse batches split among replicas."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from tensorflow.python.data.ops import iterator_ops, multi_device_iterator_ops  # noqa: E402

from tfdist.training.data.dataset_workarounds import contains_sparse, replica_batches  # noqa: E402  # after the check
from tfdist.training.fit import fit  # noqa: E402

keras = tf.keras


@pytest.fixture
def tuned(monkeypatch):
    """Note of each iterator that is made whether its autotuner is on: None is TensorFlow's default, which it is."""
    noted = []

    def noting(kind):
        begin = kind.__init__

        def noted_begin(self, dataset=None, *args, **kwargs):
            if dataset is not None:  # else it is one that a function was handed
                noted.append(dataset.options().autotune.enabled)
            begin(self, dataset, *args, **kwargs)

        monkeypatch.setattr(kind, "__init__", noted_begin)

    noting(iterator_ops.OwnedIterator)
    noting(multi_device_iterator_ops.OwnedMultiDeviceIterator)
    return noted


def train(data):
    keras.utils.set_random_seed(1)
    with (strategy := tf.distribute.MirroredStrategy(["CPU:0"])).scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    fit(model, data, strategy=strategy, epochs=2, verbose=0)


def points(autotune=None):
    options = tf.data.Options()
    if autotune is not None:
        options.autotune.enabled = autotune
    data = tf.data.Dataset.range(8).map(lambda x: (tf.cast([x], tf.float32), [1.0]))
    return data.batch(4).with_options(options)


@pytest.mark.parametrize("form", ["a data set", "a function"])
def test_no_iterator_is_tuned(tuned, form):
    train(points() if form == "a data set" else lambda context: points())
    assert tuned
    assert set(tuned) == {False}


def test_who_wants_tuning_has_it(tuned):
    train(points(autotune=True))
    assert True in tuned
    assert None not in tuned


SIZES = (5, 3, 1)  # the last one is for less than all replicas
X = [np.arange(1, 3 * size + 1, dtype=np.float32).reshape(size, 3) for size in SIZES]


def batches():
    def generate():
        for x in X:
            ragged = tf.RaggedTensor.from_row_lengths(x[:, 0], np.ones(len(x), int))
            yield {"sparse": tf.sparse.from_dense(x), "ragged": ragged}, x.sum(1)

    inputs = {"sparse": tf.SparseTensorSpec((None, 3)), "ragged": tf.RaggedTensorSpec((None, None))}
    return tf.data.Dataset.from_generator(
        generate, output_signature=(inputs, tf.TensorSpec((None,), tf.float32))
    )


@pytest.mark.parametrize("pipelines", [1, 2, 4])
def test_replicas_share_the_examples_of_each_batch(pipelines):
    contexts = [tf.distribute.InputContext(pipelines, index, 4) for index in range(pipelines)]
    made = [replica_batches(batches())(context) for context in contexts]
    parts = [list(dataset) for dataset in made]

    assert made[0].element_spec == batches().element_spec
    assert [len(own) for own in parts] == [4 // pipelines * len(SIZES)] * pipelines
    for batch, x in enumerate(X):
        here = [part for own in parts for part in own[batch * 4 // pipelines : (batch + 1) * 4 // pipelines]]
        sparse = [tf.sparse.to_dense(inputs["sparse"]).numpy() for inputs, _ in here]
        assert max(map(len, sparse)) - min(map(len, sparse)) <= 1
        np.testing.assert_array_equal(np.concatenate(sparse), x)
        np.testing.assert_array_equal(np.concatenate([y for _, y in here]), x.sum(1))
        ragged = tf.concat([inputs["ragged"] for inputs, _ in here], axis=0)
        np.testing.assert_array_equal(ragged.to_tensor(), x[:, :1])


def test_a_batch_that_is_no_tuple_stays_so():
    dataset = batches().map(lambda inputs, _: inputs["sparse"])

    [first, *_] = replica_batches(dataset)(tf.distribute.InputContext(1, 0, 2))

    assert first.dense_shape[0] == 3


def test_only_sparse_tensors_are_told():
    assert contains_sparse(batches())
    assert not contains_sparse(batches().map(lambda inputs, y: (inputs["ragged"], y)))
