"""After `tfdist.start()`, Keras's methods and functions do what they do in one process."""

import functools
import inspect
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import tfdist  # noqa: E402
from tfdist.errors import ConfigError  # noqa: E402
from tfdist.training import start  # noqa: E402  # after the check that TensorFlow is there

keras = tf.keras

SCRIPT = """
import keras
import numpy as np
import tensorflow as tf

import tfdist

strategy = tfdist.start("mirrored", logical_devices=2)
for _ in range(2):
    keras.utils.clear_session() if hasattr(keras.utils, "clear_session") else keras.backend.clear_session()
    assert tf.distribute.get_strategy() is strategy
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
    x = np.arange(6, dtype="float32").reshape(3, 2)
    outputs = model.predict_on_batch(x)
    assert outputs.shape == (3, 1), outputs.shape
    np.testing.assert_allclose(outputs[:, 0], x.sum(1))
    kernel = model.weights[0] if keras.__version__ < "3" else model.weights[0].value
    assert len(strategy.experimental_local_results(kernel)) == 2
assert tfdist.start("mirrored", logical_devices=2) is strategy
try:
    tfdist.start("mirrored", logical_devices=2, stall_timeout="auto")
except tfdist.errors.ConfigError as error:
    assert "has started with other arguments" in str(error), error
    print("done")
"""


def test_the_scope_and_one_batch_are_those_of_one_process(run_program: Any) -> None:
    run = run_program(SCRIPT)

    assert run.stdout.endswith("done\n"), run.stderr
    assert run.returncode == 0
    assert "Traceback" not in run.stderr


def test_one_replica_in_one_process_predicts_a_batch_by_keras_itself(monkeypatch: Any) -> None:
    for name in ("fit", "evaluate", "predict", "predict_on_batch", "train_on_batch", "test_on_batch"):
        monkeypatch.setattr(keras.Model, name, getattr(keras.Model, name))
    monkeypatch.setattr(start, "save_and_load_outside_scopes", lambda: None)

    def predict_on_batch(*_: Any) -> None:
        raise AssertionError("this is for several replicas")

    monkeypatch.setattr(start, "predict_on_batch", predict_on_batch)
    start._replace_methods_of_keras()
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])

    assert model.predict_on_batch(np.ones((3, 2))).shape == (3, 1)


def test_the_methods_have_the_signatures_of_keras_by_which_tools_read_arguments(monkeypatch: Any) -> None:
    own = {name: getattr(keras.Model, name) for name in ("fit", "evaluate", "predict")}
    for name in (*own, "predict_on_batch", "train_on_batch", "test_on_batch"):
        monkeypatch.setattr(keras.Model, name, getattr(keras.Model, name))
    monkeypatch.setattr(start, "save_and_load_outside_scopes", lambda: None)

    start._replace_methods_of_keras()

    for name, method in own.items():
        assert getattr(keras.Model, name).__wrapped__ is getattr(tfdist, name)
        assert inspect.signature(getattr(keras.Model, name)) == inspect.signature(method)


def test_a_method_that_another_library_has_wrapped_before_is_named(
    monkeypatch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    @functools.wraps(keras.Model.fit)  # as mlflow.tensorflow.autolog() of MLflow 3.17 does
    def fit(self: Any, *args: Any, **kwargs: Any) -> None:
        raise AssertionError("this is not called")

    start._warn_of_wrapped_methods()
    assert not caplog.text
    monkeypatch.setattr(keras.Model, "fit", fit)
    start._warn_of_wrapped_methods()
    assert "test_start has replaced Model.fit, and has no effect any more: call tfdist" in caplog.text


@pytest.mark.skipif(bool(tf.config.list_physical_devices("GPU")), reason="needs a machine without a GPU")
def test_what_the_tasks_would_refuse_is_refused_before_they_start(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(start, "print_own_errors_in_a_line", lambda: None)
    monkeypatch.setattr(start, "_started", [])
    for options in ({"device": "gpu"}, {"memory_growth": True}):
        with pytest.raises(ConfigError, match="no GPU"):
            start.start(workers=1, ps=1, **options)
    assert list(tmp_path.iterdir()) == []
