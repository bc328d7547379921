"""The scope that `tfdist.start()` enters lasts when Keras clears its session."""

import importlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

tf = pytest.importorskip("tensorflow")

from tfdist.strategies import lasting_patches  # noqa: E402  # after the check that TensorFlow is there
from tfdist.strategies.strategy_classes import Mirrored  # noqa: E402


@pytest.fixture
def entered(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, ThreadPoolExecutor]]:
    """Enter a strategy's scope for good in a thread, whose default graph is its own."""
    at_exit: list[Any] = []
    monkeypatch.setattr(lasting_patches.atexit, "register", at_exit.append)
    strategy = Mirrored(["/cpu:0"])
    with ThreadPoolExecutor(1) as thread:
        thread.submit(lasting_patches.enter_for_good, strategy).result()
        yield strategy, thread
        thread.submit(at_exit[0]).result()


def test_keras_clears_its_session_and_the_scope_lasts(entered: tuple[Any, ThreadPoolExecutor]) -> None:
    strategy, thread = entered

    def script() -> tuple[bool, Any]:
        for _ in range(2):
            tf.keras.backend.clear_session()
        return tf.distribute.get_strategy() is strategy, tf.Variable(1.0).aggregation

    assert thread.submit(script).result() == (True, tf.VariableAggregation.MEAN)


def test_the_scope_lasts_whatever_the_reset_is_called(entered: tuple[Any, ThreadPoolExecutor]) -> None:
    strategy, thread = entered

    def script() -> bool:
        imported_by_tensorboard = importlib.import_module("tensorflow.compat.v1")
        imported_by_tensorboard.reset_default_graph()
        return tf.distribute.get_strategy() is strategy

    assert thread.submit(script).result()


def test_a_saved_model_answers_in_the_scope(entered: tuple[Any, ThreadPoolExecutor], tmp_path: Path) -> None:
    module = tf.Module()
    module.weight = tf.Variable(3.0)
    module.times = tf.function(
        lambda x: module.weight * x, autograph=False, input_signature=[tf.TensorSpec([])]
    )
    tf.saved_model.save(module, str(tmp_path), signatures=module.times)
    _, thread = entered

    def script() -> list[float]:
        loaded = tf.saved_model.load(str(tmp_path))
        answers = [
            loaded.times(tf.constant(2.0)),
            *loaded.signatures["serving_default"](tf.constant(2.0)).values(),
        ]
        return [float(answer) for answer in answers]

    assert thread.submit(script).result() == [6.0, 6.0]


def test_other_threads_stay_outside(entered: tuple[Any, ThreadPoolExecutor]) -> None:
    strategy, _ = entered
    tf.keras.backend.clear_session()

    assert tf.distribute.get_strategy() is not strategy
