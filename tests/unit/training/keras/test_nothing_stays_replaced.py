"""No method that tfdist replaces stays on a user's optimizer, variables or modules after a call."""

import contextlib
import importlib
import threading

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from tensorflow.python.data.ops import multi_device_iterator_ops  # noqa: E402
from tensorflow.python.distribute import ps_values  # noqa: E402

from tfdist._utils.temporary_patches import methods_replaced  # noqa: E402
from tfdist.training.evaluate import evaluate  # noqa: E402
from tfdist.training.fit import fit  # noqa: E402
from tfdist.training.predict import predict  # noqa: E402
from tfdist.training.replicas.hide_other_replicas import replicas_hidden, replicas_hideable  # noqa: E402

keras = tf.keras


def _model():
    model = keras.Sequential(
        [keras.Input((3,), dtype="int32"), keras.layers.Embedding(9, 2), keras.layers.Dense(1)]
    )
    model.compile(keras.optimizers.Adam(0.1, weight_decay=0.01), "mse")
    return model


def _data(most=9):
    x = np.arange(24).reshape(8, 3) % most
    return tf.data.Dataset.from_tensor_slices((x.astype("int32"), x[..., None].astype("float32"))).batch(4)


def _state(model):
    """Return the attributes of the objects that are patched while a step is traced, and the functions of modules."""
    owners = [model.optimizer, model.optimizer.iterations, *model.variables]
    modules = [multi_device_iterator_ops, ps_values.DistributedTable]
    if keras.__version__ >= "3":
        modules.append(importlib.import_module("keras.src.losses.loss"))
    names = [sorted(vars(owner)) for owner in owners if hasattr(owner, "__dict__")]
    return names, [{name: value for name, value in vars(each).items() if callable(value)} for each in modules]


def test_nothing_stays_after_fit_evaluate_and_predict():
    model = _model()
    fit(model, _data(), verbose=0)  # which builds what is built once
    before = _state(model)
    fit(model, _data(), validation_data=_data(), verbose=0)
    assert _state(model) == before
    evaluate(model, _data())
    assert _state(model) == before
    predict(model, _data())
    assert _state(model) == before
    assert not {"update_step", "assign_add"} & {*vars(model.optimizer), *vars(model.optimizer.iterations)}


def test_nothing_stays_where_a_call_fails():
    model = _model()
    fit(model, _data(), verbose=0)
    before = _state(model)
    bad = _data().map(lambda x, y: (x + 100, y))  # there are no such rows
    for call in (
        lambda: fit(model, bad, verbose=0),
        lambda: evaluate(model, bad),
        lambda: predict(model, bad),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError):
            call()
        assert _state(model) == before


def test_a_method_that_the_user_replaced_is_the_users_again():
    if keras.__version__ < "3":
        pytest.skip("the step of Keras 2 calls another method")
    model = _model()
    fit(model, _data(), verbose=0)
    own = model.optimizer.update_step

    calls = []

    def mine(*args, **kwargs):
        calls.append(args)
        return own(*args, **kwargs)

    model.optimizer.update_step = mine
    model.compile(model.optimizer, "mse")  # as Keras, tfdist would not trace the step again otherwise
    fit(model, _data(), verbose=0)
    assert model.optimizer.update_step is mine
    assert calls


@pytest.mark.skipif(keras.__version__ < "3", reason="only steps of Keras 3 are patched in classes")
def test_no_class_keeps_a_replaced_method():
    kinds = [keras.optimizers.Optimizer, keras.optimizers.LossScaleOptimizer, tf.GradientTape]
    metric = keras.metrics.Mean()
    before = [dict(vars(kind)) for kind in kinds], sorted(vars(metric))
    with contextlib.suppress(ZeroDivisionError), contextlib.ExitStack() as stack:
        methods = [(kinds[0], "apply", lambda *_: None), (kinds[1], "apply", lambda *_: None)]
        methods += [(tf.GradientTape, "gradient", lambda *_: None)]
        methods += [(metric, "result", lambda original, owner: (owner, original()))]
        stack.enter_context(methods_replaced(methods))
        assert keras.optimizers.SGD().apply([1.0], [None]) is None
        assert metric.result() == (metric, 0.0)
        1 / 0  # noqa: B018
    assert ([dict(vars(kind)) for kind in kinds], sorted(vars(metric))) == before


@pytest.fixture
def strategy(monkeypatch):
    made = tf.distribute.OneDeviceStrategy("/cpu:0")
    monkeypatch.setattr(type(made.extended), "_num_replicas_in_sync", property(lambda _: 4))
    return made


def test_one_replica_is_counted_in_this_thread_only(strategy):
    counted = []
    with replicas_hideable():
        assert strategy.num_replicas_in_sync == 4
        with replicas_hidden():
            assert strategy.num_replicas_in_sync == 1
            thread = threading.Thread(target=lambda: counted.append(strategy.num_replicas_in_sync))
            thread.start()
            thread.join()
            with replicas_hidden(False):
                assert strategy.num_replicas_in_sync == 4
            assert strategy.num_replicas_in_sync == 1
        assert strategy.num_replicas_in_sync == 4
    assert counted == [4]


def test_nothing_stays_when_a_block_fails(strategy):
    before = dict(vars(tf.distribute.Strategy))
    with pytest.raises(ZeroDivisionError), replicas_hideable(), replicas_hidden():
        1 / 0  # noqa: B018
    assert dict(vars(tf.distribute.Strategy)) == before
    with replicas_hideable():
        assert strategy.num_replicas_in_sync == 4
