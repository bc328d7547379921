"""Recognise whether a model returns logits or probabilities, by what it computes for a few images."""

from typing import Any, Literal

import numpy as np

from tfdist.errors import ConfigError

Outputs = Literal["logits", "probabilities", "unknown"]

# Softmax in 16 bits rounds each probability.
_TOLERANCE = 1e-2


def outputs_of(model: Any, images: Any, classes: int) -> Outputs:
    """Return what a model's outputs are.

    A softmax may be anywhere in the model: the outputs for each image are probabilities that add up to 1. The
    outputs of a sigmoid do not, so it is recognised as the activation of the last layer. `unknown` means
    outputs from 0 to 1 that neither of the two explains.

    Args:
        model: A Keras model whose variables are all in this process.
        images: A few images.
        classes: The number of classes.

    Raises:
        ConfigError: The model does not return one number for each class.
    """
    given = model(images, training=False)
    wanted = (len(images), classes)
    if isinstance(given, (list, tuple, dict)):
        received = f"{len(given)} outputs" if len(given) != 1 else f"a {type(given).__name__}"
        raise ConfigError(f"model {model.name}", expected="one tensor as its output", received=received)
    values = np.asarray(given, np.float64)
    if values.shape != wanted:
        raise ConfigError(
            f"model {model.name}",
            expected=f"outputs of the shape {list(wanted)}, one for each class of {len(images)} images",
            received=str(list(values.shape)),
        )
    if not (np.all(values >= 0) and np.all(values <= 1 + _TOLERANCE)):  # also for NaN
        return "logits"
    if np.all(np.abs(values.sum(axis=1) - 1) <= _TOLERANCE):
        return "probabilities"
    activation = _last_activation(model)
    if activation in ("sigmoid", "hard_sigmoid"):
        return "probabilities"
    return "logits" if activation == "linear" or not values.any() else "unknown"


def _last_activation(model: Any) -> str:
    """Return the name of the last layer's activation function; an empty text if it has none."""
    layer = model
    while layers := getattr(layer, "layers", None):
        layer = layers[-1]
    return getattr(getattr(layer, "activation", None), "__name__", "")
