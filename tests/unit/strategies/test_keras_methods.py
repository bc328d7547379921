"""`model.fit` is tfdist's for models of a cluster's strategy, without `tfdist.start()`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

from tfdist.strategies.lasting_patches import replace_methods  # noqa: E402  # after the check for TensorFlow
from tfdist.strategies.strategy_classes import Mirrored  # noqa: E402

pytestmark = pytest.mark.skipif(
    keras.__version__.startswith("2."), reason="Keras 2 trains on clusters itself"
)

METHODS = ("fit", "evaluate", "predict", "predict_on_batch")
X, Y = np.ones((4, 2), "float32"), np.zeros((4, 1), "float32")


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = {name: vars(keras.Model)[name] for name in METHODS if name in vars(keras.Model)}
    for name in before:
        delattr(keras.Model, name)
    yield
    for name in METHODS:
        delattr(keras.Model, name)
    for name, method in before.items():
        setattr(keras.Model, name, method)


def compiled() -> Any:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def test_only_models_of_such_a_strategy_are_trained_by_tfdist() -> None:
    strategy = tf.distribute.OneDeviceStrategy("/device:CPU:0")
    replace_methods((tf.distribute.OneDeviceStrategy,))
    with strategy.scope():
        model = compiled()

    history = model.fit(X, Y, batch_size=4, epochs=1, steps_per_epoch=3, repeat=True, verbose=0)

    assert model.optimizer.iterations == 3  # the data of one batch begin again, which only tfdist does
    assert isinstance(model.evaluate(X, Y, verbose=0), float)
    assert model.predict(X, verbose=0).shape == (4, 1)
    assert len(history.history["loss"]) == 1
    with pytest.raises(TypeError, match="repeat"):
        compiled().fit(X, Y, repeat=True, verbose=0)


def test_a_model_of_several_devices_is_trained_by_tfdist() -> None:
    with Mirrored(["/cpu:0"]).scope():
        model = compiled()
    of_tensorflow = tf.distribute.MirroredStrategy(["/cpu:0"])
    with of_tensorflow.scope():
        other = compiled()

    model.fit(X, Y, batch_size=4, epochs=1, steps_per_epoch=3, repeat=True, verbose=0)

    assert model.optimizer.iterations == 3
    with pytest.raises(TypeError, match="repeat"):
        other.fit(X, Y, repeat=True, verbose=0)


def test_methods_that_are_replaced_stay() -> None:
    replace_methods((tf.distribute.OneDeviceStrategy,))
    before = {name: vars(keras.Model)[name] for name in METHODS}

    replace_methods((tf.distribute.MirroredStrategy,))

    assert {name: vars(keras.Model)[name] for name in METHODS} == before


def test_a_worker_saves_and_loads_a_model_by_itself(tmp_path: Path) -> None:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    replace_methods((tf.distribute.MultiWorkerMirroredStrategy,))
    made: list[Any] = []

    def noted(next_creator: Any, **kwargs: Any) -> Any:
        made.append(kwargs["name"])
        return next_creator(**kwargs)

    with strategy.scope(), tf.variable_creator_scope(noted):
        model = compiled()
        count = len(made)
        model.save(tmp_path / "model.keras")
        model.save_weights(tmp_path / "model.weights.h5")
        keras.saving.save_model(model, tmp_path / "again.keras")
        model.load_weights(tmp_path / "model.weights.h5")
        model.load_weights(tmp_path / "model.keras")
        assert tf.distribute.get_strategy() is strategy

    assert len(made) == count > 0
    assert keras.models.load_model(tmp_path / "model.keras").optimizer.iterations == 0
