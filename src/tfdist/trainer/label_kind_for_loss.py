"""Find which labels a model is trained on: class numbers or one-hot vectors."""

from typing import Any

import tensorflow as tf

from tfdist.errors import ConfigError
from tfdist.trainer.config import Config

__all__ = ["has_one_hot_labels"]


def has_one_hot_labels(config: Config, loss: Any) -> bool:
    """Return whether labels are one-hot: most losses of Keras compare with such labels.

    Args:
        config: The config.
        loss: The loss that the model is compiled with, in any form that Keras accepts.

    Raises:
        ConfigError: The config says otherwise, but the loss needs the other kind.
    """
    losses = [part for part in tf.nest.flatten(loss) if part is not None]
    need = [_needs_one_hot(part) for part in losses if _is_kerass(part)]
    wanted = config.data.one_hot
    if wanted is None:
        return any(need)
    if need and wanted != any(need):
        kind = "one-hot labels" if any(need) else "class numbers"
        problem = f"is {str(wanted).lower()}, but the loss compares with {kind}"
        raise ConfigError("data.one_hot", problem, remedy="Leave it out, or take another train.loss")
    return wanted


def _needs_one_hot(loss: Any) -> bool:
    name = loss if isinstance(loss, str) else str(getattr(loss, "__name__", type(loss).__name__))
    return "sparse" not in name.lower()


def _is_kerass(loss: Any) -> bool:
    """Return whether a loss is one of Keras's, by its name or as an object."""
    kind = loss if hasattr(loss, "__name__") else type(loss)
    return isinstance(loss, str) or str(kind.__module__).partition(".")[0] in ("keras", "tf_keras")
