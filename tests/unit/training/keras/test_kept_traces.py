"""Later calls use what earlier ones have traced, exactly where Keras does."""

import copy
import gc
import pickle
import weakref

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from again import again  # noqa: E402  # after the check that TensorFlow is there
from tfdist.training.evaluate import evaluate  # noqa: E402
from tfdist.training.fit import fit  # noqa: E402
from tfdist.training.predict import predict  # noqa: E402

keras = tf.keras
IS_KERAS_2 = keras.__version__ < "3"
ONLY_KERAS_3 = pytest.mark.skipif(IS_KERAS_2, reason="Keras 2 has no such thing")

TRACED = []


@keras.utils.register_keras_serializable("kept_traces")
class Noting(keras.layers.Layer):
    """A layer that notes when Python calls it."""

    def call(self, inputs):
        TRACED.append("call")
        return inputs


class Ours:
    """The functions of tfdist."""

    fit, evaluate, predict = staticmethod(fit), staticmethod(evaluate), staticmethod(predict)


class Kerass:
    """The methods of Keras."""

    fit, evaluate, predict = keras.Model.fit, keras.Model.evaluate, keras.Model.predict


def _model(optimizer="sgd", **options):
    keras.utils.set_random_seed(3)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((4,)),
            Noting(),
            layers.Dense(6, "relu"),
            layers.BatchNormalization(),
            layers.Dropout(0.2),
            layers.Dense(2, "softmax"),
        ]
    )
    model.compile(optimizer, "sparse_categorical_crossentropy", weighted_metrics=["accuracy"], **options)
    return model


def _arrays(size=26):
    rng = np.random.default_rng(5)
    return rng.normal(size=(size, 4)).astype("float32"), rng.integers(0, 2, size)


def _data(batch=8, **options):
    return tf.data.Dataset.from_tensor_slices(_arrays()).batch(batch, **options)


def _traces_of(call):
    before = len(TRACED)
    call()
    return len(TRACED) - before


def test_later_calls_trace_nothing():
    model, x = _model(steps_per_execution=2), _arrays()[0]
    calls = [
        lambda: fit(model, _data(), verbose=0),
        lambda: evaluate(model, _data(), verbose=0),
        lambda: predict(model, _data(), verbose=0),
    ]
    assert all(_traces_of(call) for call in calls)
    calls += [
        lambda: fit(model, _data(), validation_data=_data(5), epochs=2, verbose=0),
        lambda: fit(model, _data(3), steps_per_epoch=4, verbose=0),  # batches of another size
        lambda: evaluate(model, _data(7), steps=2, verbose=0),
        lambda: predict(model, x[:5], verbose=0),
    ]
    assert [_traces_of(call) for call in calls] == [0] * len(calls)


@pytest.mark.parametrize("change", ["compile", "optimizer", "make_train_function", "run_eagerly"])
def test_what_makes_keras_trace_again_does(change):
    model = _model()
    fit(model, _data(), verbose=0)
    if change == "compile":
        model.compile("sgd", "sparse_categorical_crossentropy")
    elif change == "optimizer":
        with tf.init_scope():
            model.optimizer = keras.optimizers.SGD()
            model.optimizer.build(model.trainable_variables)
    elif change == "make_train_function":
        model.train_function = model.make_train_function(force=True) or model.train_function
    else:
        model.run_eagerly = True
    assert _traces_of(lambda: fit(model, _data(), verbose=0))


@ONLY_KERAS_3
def test_layers_with_other_variables_are_traced_again():
    model = _model()
    predict(model, _data(), verbose=0)
    model.layers[1].quantize("int8")
    assert _traces_of(lambda: predict(model, _data(), verbose=0))


def _told(api, model):
    """Call fit and evaluate in the ways that could find something stale, and tell what comes of each call."""
    x, y = _arrays()
    weights, told = {0: 0.25, 1: 3.0}, []

    def trained(**options):
        history = api.fit(model, x, y, batch_size=8, shuffle=False, verbose=0, **options).history
        logs = [history[name] for name in sorted(history)]  # Keras 2 has them in another order
        told.append([*logs, *(np.ravel(part)[:3] for part in model.get_weights())])

    trained(epochs=2)
    trained(class_weight=weights)
    told.append(api.evaluate(model, x, y, batch_size=5, verbose=0))
    trained(validation_data=(x, y))
    model.optimizer.learning_rate = 0.5
    trained(sample_weight=np.linspace(0, 2, len(x)))
    model.layers[1].trainable = False  # which means nothing to a step that is traced
    trained()
    model.layers[2].trainable = False
    trained(class_weight=weights)
    told.append(api.predict(model, x, batch_size=7, verbose=0))
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])  # now it does
    trained()
    keras.utils.set_random_seed(9)
    model.layers[1].trainable = True
    model.compile(keras.optimizers.Adam(0.1), "sparse_categorical_crossentropy")
    trained()
    trained(steps_per_epoch=2, epochs=3)
    return told


@pytest.mark.parametrize("optimizer", ["sgd", again("adam")])
def test_calls_in_a_row_give_the_numbers_of_keras(optimizer):
    ours, kerass = (_told(api, _model(optimizer)) for api in (Ours, Kerass))
    for found, expected in zip(ours, kerass, strict=True):
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)


def test_an_eager_step_follows_trainable_at_once_with_keras_3_and_when_compiled_with_keras_2():
    model = _model(run_eagerly=True)
    fit(model, _data(), verbose=0)
    model.layers[1].trainable = False
    before = model.get_weights()
    fit(model, _data(), verbose=0)
    changed = [not np.array_equal(*pair) for pair in zip(before, model.get_weights(), strict=True)]
    frozen = len(model.layers[1].weights)
    assert any(changed[:frozen]) == (keras.__version__ < "3")
    assert any(changed[frozen:])


def test_a_callback_may_evaluate_the_model_that_is_trained():
    model = _model()
    evaluating = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: evaluate(model, _data(), verbose=0)
    )
    fit(model, _data(), callbacks=[evaluating], verbose=0)
    assert _traces_of(lambda: fit(model, _data(), epochs=2, callbacks=[evaluating], verbose=0)) == 0


def test_neither_data_nor_the_model_are_kept():
    model, data = _model(), _data()
    fit(model, data, validation_data=data, verbose=0)
    evaluate(model, data, verbose=0)
    predict(model, data, verbose=0)
    data_alive, model_alive = weakref.ref(data), weakref.ref(model)
    del data
    gc.collect()
    assert data_alive() is None
    del model
    gc.collect()
    assert model_alive() is None


def test_copies_of_a_model_trace_for_themselves(tmp_path):
    model, path = _model(), tmp_path / "model.keras"
    fit(model, _data(), verbose=0)
    model.save(path)
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), keras.models.load_model(path)]
    weights = model.get_weights()
    for each in copies:
        assert _traces_of(lambda each=each: fit(each, _data(), verbose=0))
        assert not all(map(np.array_equal, each.get_weights(), weights))
    assert all(map(np.array_equal, model.get_weights(), weights))


def test_a_call_that_fails_leaves_nothing_behind():
    model = _model()
    fit(model, _data(), verbose=0)
    wrong = _data().map(lambda x, y: (tf.reshape(x, [5, -1]), y))  # TensorFlow cannot
    with pytest.raises(tf.errors.InvalidArgumentError):
        evaluate(model, wrong, verbose=0)
    assert _traces_of(lambda: fit(model, _data(), verbose=0))
    assert _traces_of(lambda: fit(model, _data(), verbose=0)) == 0


@ONLY_KERAS_3
def test_a_metric_that_counts_otherwise_in_tests_is_traced_again():
    class Last(keras.metrics.Metric):
        """A metric that adds up or keeps the last value, as it is told when it is traced."""

        keeps_last = False

        def __init__(self):
            super().__init__(name="last")
            self.value = self.add_variable((), "zeros", name="value")

        def update_state(self, y_true, y_pred, sample_weight=None):
            size = keras.ops.cast(keras.ops.shape(y_true)[0], "float32")
            self.value.assign(size if self.keeps_last else self.value + size)

        def result(self):
            return self.value

    model, metric = _model(), Last()
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=[metric])
    assert fit(model, _data(), verbose=0).history["last"] == [26]
    metric.keeps_last = True
    assert evaluate(model, _data(), verbose=0, return_dict=True)["last"] == 2
    assert fit(model, _data(), verbose=0).history["last"] == [2]
    assert _traces_of(lambda: fit(model, _data(), validation_data=_data(), verbose=0)) == 0
