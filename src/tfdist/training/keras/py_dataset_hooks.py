"""Call the epoch hooks of a PyDataset when Keras's own `fit`, `evaluate` and `predict` call them."""

from collections.abc import Callable
from typing import Any

from tfdist._utils.keras_2_and_3 import is_keras_2, keras_of


def has_hooks(model: Any, x: Any) -> bool:
    """Return whether data are a PyDataset, or a Sequence of Keras 2."""
    utils = keras_of(model).utils
    return isinstance(x, getattr(utils, "PyDataset", None) or utils.Sequence)


def epoch_hooks(model: Any, x: Any, phase: str = "train") -> list[Any]:
    """Return a list with the callback that calls the epoch hooks of a PyDataset; empty for other data.

    Keras 3 ends an epoch before the first one too, unless it predicts: data may be shuffled there. In
    training, `hook_after_batches` is called at the end of an epoch. Keras 2 has one hook only, in training.
    """
    if not has_hooks(model, x):
        return []

    def begin(*_: Any) -> None:
        x.on_epoch_begin()

    def end(*_: Any) -> None:
        x.on_epoch_end()

    def end_and_begin(*_: Any) -> None:
        end()
        begin()

    hooks: dict[str, dict[str, Any]] = {
        "train": {"on_train_begin": end, "on_epoch_begin": begin},
        "test": {"on_test_begin": end_and_begin, "on_test_end": end},
        "predict": {"on_predict_begin": begin, "on_predict_end": end},
    }
    if is_keras_2(model):
        hooks = {"train": {"on_epoch_end": end}, "test": {}, "predict": {}}
    return [keras_of(model).callbacks.LambdaCallback(**hooks[phase])]


def hook_after_batches(model: Any, x: Any) -> Callable[[], None]:
    """Return what Keras 3 calls after the last batch of a training epoch, before it validates."""
    if is_keras_2(model) or not has_hooks(model, x):
        return lambda: None
    return x.on_epoch_end  # type: ignore[no-any-return]
