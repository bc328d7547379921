"""Recognise whether a model returns logits or probabilities, by what it computes for a few images."""

from typing import Any, Literal

import numpy as np

from tfdist.errors import ConfigError

Outputs = Literal["logits", "probabilities", "unknown"]

# Softmax in 16 bits rounds each probability.
_TOLERANCE = 1e-2
_IMAGES_FOR_OTHER_WEIGHTS, _OTHER_WEIGHTS = 4, 4  # logits of a few classes may all be from 0 to 1 by chance


def outputs_of(model: Any, images: Any, classes: int) -> Outputs:
    """Return what a model's outputs are.

    A softmax may be anywhere in the model: the outputs for each image are probabilities that add up to 1. The
    outputs of a sigmoid do not, so it is recognised as the activation of the last layer. Outputs that leave
    the range from 0 to 1 are logits; those that are in it by chance leave it with other weights. `unknown`
    means outputs from 0 to 1 with any weights that neither of the two explains.

    Args:
        model: A Keras model whose variables are all in this process, and keep their values.
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
    if not _are_in_range(values) or _leave_range_with_other_weights(model, images):
        return "logits"
    if np.all(np.abs(values.sum(axis=1) - 1) <= _TOLERANCE):
        return "probabilities"
    return "probabilities" if _last_activation(model) in ("sigmoid", "hard_sigmoid") else "unknown"


def _are_in_range(values: Any) -> bool:
    return bool(np.all(values >= 0) and np.all(values <= 1 + _TOLERANCE))  # not for NaN


def _leave_range_with_other_weights(model: Any, images: Any) -> bool:
    """Return whether the outputs are outside of 0 to 1 with some other values of the trainable variables."""
    random = np.random.default_rng(0)
    before = [variable.numpy() for variable in model.trainable_variables]
    try:
        for _ in range(_OTHER_WEIGHTS):
            for variable, values in zip(model.trainable_variables, before, strict=True):
                inputs = np.prod(values.shape[:-1])  # of each unit; 1 for a bias
                variable.assign(values + random.normal(scale=2 / np.sqrt(inputs), size=values.shape))
            outputs = np.asarray(model(images[:_IMAGES_FOR_OTHER_WEIGHTS], training=False), np.float64)
            if np.all(np.isfinite(outputs)) and not _are_in_range(outputs):
                return True
    finally:
        for variable, values in zip(model.trainable_variables, before, strict=True):
            variable.assign(values)
    return False


def _last_activation(model: Any) -> str:
    """Return the name of the last layer's activation function; an empty text if it has none."""
    layer = model
    while layers := getattr(layer, "layers", None):
        layer = layers[-1]
    return getattr(getattr(layer, "activation", None), "__name__", "")
