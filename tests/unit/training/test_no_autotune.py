"""Iterators that end when they are let go: none is tuned, on no device, unless somebody has asked for it."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import pytest

tf = pytest.importorskip("tensorflow")

from tensorflow.python.data.ops import iterator_ops, multi_device_iterator_ops  # noqa: E402

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
