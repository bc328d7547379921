"""Build and compile the model that a config describes, and find out what it returns."""

from typing import Any

import numpy as np
import tensorflow as tf

from tfdist._utils.keras_2_and_3 import build_for
from tfdist.datasets.augmentation import augmented_shape
from tfdist.datasets.disk_cache import size_text
from tfdist.datasets.open_data import Data
from tfdist.errors import ConfigError
from tfdist.models.logits_or_probabilities import Outputs, outputs_of
from tfdist.models.model_by_name import build
from tfdist.trainer.compilation import check_results, compile_model
from tfdist.trainer.config import Config
from tfdist.trainer.losses_and_metrics import has_one_hot_labels, outputs_for_loss
from tfdist.trainer.step_counts import total_steps
from tfdist.training.keras.model_facts import has_own

_IMAGES_TO_LOOK_AT = 16
_METHODS_OF_RESULTS = ("compile", "test_step", "compute_metrics")


def build_model(config: Config, data: Data) -> Any:
    """Build the model for the data's images and classes, with its variables.

    In a strategy's scope, a model that makes its variables when it is called has none yet: a session, which
    knows the strategy, makes them.
    """
    model = build(config.model.name, data.image_shape, len(data.classes), **config.model.options)
    if not model.built and not tf.distribute.has_strategy():
        model(tf.zeros((1, *data.image_shape), tf.uint8))
    return model


def own_modules(config: Config) -> list[str]:
    """Return the module of the user's function that builds the model, if there is one."""
    module, colon, _ = config.model.name.partition(":")
    return [module] if colon else []


def find_outputs(config: Config, data: Data) -> Outputs:
    """Return what the model returns; call it outside of the strategy's scope, before `compiled_model`.

    A model of the user's own is built once more for that, with the same weights in all tasks. If it overrides
    what its evaluations return, it evaluates a few images, to find at once what they lack.

    Raises:
        ConfigError: The outputs are not one number for each class, or an evaluation has no loss or accuracy,
            or the model does not take the augmented images.
    """
    if ":" not in config.model.name:  # tfdist's own
        _check_takes_augmented(config, data)
        return "logits"
    tf.keras.utils.set_random_seed(config.train.seed)
    images, labels = (np.array(array[:_IMAGES_TO_LOOK_AT]) for array in data.split("test").arrays())
    model = build_model(config, data)
    outputs = outputs_of(model, images, len(data.classes))
    _check_takes_augmented(config, data, model)
    outputs = outputs_for_loss(config.train.loss, model) if outputs == "unknown" else outputs
    if any(has_own(model, method) for method in _METHODS_OF_RESULTS):
        compile_model(model, config, outputs, steps=total_steps(config, data))
        if has_one_hot_labels(config, getattr(model, "loss", None)):
            labels = np.eye(len(data.classes), dtype=np.float32)[labels]
        check_results(model, model.evaluate(images, labels, verbose=0, return_dict=True))
    return outputs


def _check_takes_augmented(config: Config, data: Data, model: Any = None) -> None:
    """Raise ConfigError if the training images have another size by the augmentation, and it does not fit."""
    augment = config.data.augment
    shape = augmented_shape(augment, data.image_shape)
    if shape == tuple(data.image_shape):
        return
    model = build_model(config, data) if model is None else model
    try:
        model(tf.zeros((1, *shape), tf.uint8), training=False)
    except (ValueError, TypeError, tf.errors.InvalidArgumentError):  # each layer has its own
        name = config.model.name
        problem = f"{augment} makes images of {size_text(shape)}, which model {name} does not take"
        raise ConfigError("data.augment", problem, remedy="Take crop_flip, or another model") from None


def compiled_model(config: Config, data: Data, outputs: Outputs) -> Any:
    """Build the model and compile it for its outputs; call it in the strategy's scope."""
    model = build_model(config, data)
    compile_model(model, config, outputs, steps=total_steps(config, data))
    return model


def initial_model(
    config: Config, data: Data, strategy: tf.distribute.Strategy, outputs: Outputs | None = None
) -> Any:
    """Return the compiled model under a strategy, with the weights that the seed of the config determines."""
    outputs = find_outputs(config, data) if outputs is None else outputs
    tf.keras.utils.set_random_seed(config.train.seed)
    with strategy.scope():
        model = compiled_model(config, data, outputs)
        if has_own(model, "train_step") and has_own(model, "test_step"):
            # A session leaves such a model to its steps, because they may call it with something else.
            build_for(model, tf.TensorSpec((None, *data.image_shape), tf.uint8))
    return model
