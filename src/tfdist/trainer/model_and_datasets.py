"""Make what a config describes: the compiled model, and the batches of training and test data."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist._utils.keras_2_and_3 import build_for
from tfdist._utils.strategy_kinds import is_asynchronous
from tfdist.datasets.augmentation import augmented_shape
from tfdist.datasets.disk_cache import size_text
from tfdist.datasets.open_data import Data, DataRequest
from tfdist.datasets.pipeline import train_parts
from tfdist.errors import ConfigError
from tfdist.launcher.record_events import is_launched
from tfdist.models.logits_or_probabilities import Outputs, outputs_of
from tfdist.models.model_by_name import build
from tfdist.profiling.parse_step_range import parse_steps
from tfdist.trainer.compilation import check_results, compile_model
from tfdist.trainer.config import Config
from tfdist.trainer.losses_and_metrics import has_one_hot_labels, outputs_for_loss
from tfdist.training.keras.model_checks import has_own
from tfdist.training.run_batches import steps_per_execution
from tfdist.training.workers.choose_steps_per_call import StepsPerCall

_IMAGES_TO_LOOK_AT = 16
_METHODS_OF_RESULTS = ("compile", "test_step", "compute_metrics")


def open_run_data(config: Config) -> Data:
    """Open the data of a run; under a launcher, which has opened them before, do not repeat its warning."""
    return DataRequest(**config.data.wanted()).open(warns=not is_launched())


def steps_per_epoch(config: Config, data: Data) -> int:
    """Return the whole number of batches in the training data."""
    return max(1, data.train_examples // config.data.batch_size)


def total_steps(config: Config, data: Data) -> int:
    """Return the number of steps that a run takes."""
    return config.train.steps or config.train.epochs * steps_per_epoch(config, data)


def note_of_large_batch(config: Config, data: Data) -> str:
    """Return what a batch of more examples than the training data have does; empty for others."""
    batch, images = config.data.batch_size, data.train_examples
    if batch <= images:
        return ""
    return f"data.batch_size {batch} exceeds the {images} training images: a step repeats some"


def periods(config: Config, data: Data) -> tuple[int, int]:
    """Return after how many steps each the model is evaluated and saved."""
    per_epoch = steps_per_epoch(config, data)
    return config.evaluation.every or per_epoch, config.checkpoint.every or per_epoch


def profiled_range(config: Config, total: int) -> tuple[int, int] | None:
    """Return the first and the last step to record; None if none is.

    Raises:
        ConfigError: The run has fewer steps.
    """
    if config.train.profile is None:
        return None
    place = "train.profile"
    first, last = parse_steps(config.train.profile, place)
    if last > total:
        expected, received = f"steps of the run, which has {total}", config.train.profile
        raise ConfigError(place, expected=expected, received=received, remedy=f"End at {total} or before")
    return first, last


def steps_per_call(config: Config, data: Data, model: Any, *, workers: int) -> StepsPerCall:
    """Return the steps of a call of the graph: what the config or the compiled model says, or what fits.

    Args:
        config: The config.
        data: The data set.
        model: The compiled model.
        workers: The number of asynchronous workers; 0 if all tasks train in step.
    """
    fixed = config.train.steps_per_execution or steps_per_execution(model)
    is_said = config.train.steps_per_execution is not None or fixed > 1
    if is_said or config.train.callbacks or model.run_eagerly:  # Keras calls callbacks after each call
        return StepsPerCall(fixed)
    every = config.summaries.every
    if not workers:
        return StepsPerCall(None, most=every)
    # At an evaluation and at a checkpoint, no worker should wait long for the last call of another.
    return StepsPerCall(None, most=min(every, *periods(config, data)) // (2 * workers), workers=workers)


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


@dataclass(frozen=True)
class Batches:
    """The training and test batches of a config, with the labels that a model's loss takes."""

    config: Config
    data: Data
    one_hot: bool
    are_apart: bool = False

    @classmethod
    def of(
        cls, config: Config, data: Data, model: Any, strategy: tf.distribute.Strategy | None = None
    ) -> "Batches":
        """Return the batches for a compiled model; of one worker in each step of an asynchronous strategy."""
        are_apart = strategy is not None and is_asynchronous(strategy)
        return cls(config, data, has_one_hot_labels(config, getattr(model, "loss", None)), are_apart)

    # No control flow depends on tensors here, and AutoGraph would take half a second to find that out.
    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def train(
        self, context: tf.distribute.InputContext, skip_steps: int = 0, without: Sequence[int] = ()
    ) -> tf.data.Dataset:
        """Return one input pipeline's part of the training data, after `skip_steps` of its steps.

        `without` is the global batches to leave out. Synchronous replicas share the global batch as evenly as
        possible: their number need not divide it.
        """
        section, pipelines = self.config.data, context.num_input_pipelines
        # An asynchronous worker takes a whole batch in each step, of which its devices have parts.
        steps_at_once = pipelines if self.are_apart else 1
        replicas, of = context.num_replicas_in_sync * steps_at_once, section.batch_size * steps_at_once
        if of < replicas:
            remedy = f"Set {replicas} or more, or use fewer replicas"
            problem = f"{of} examples cannot be shared by {replicas} replicas"
            raise ConfigError("data.batch_size", problem, remedy=remedy)
        per_pipeline = replicas // pipelines
        own = range(context.input_pipeline_id * per_pipeline, (context.input_pipeline_id + 1) * per_pipeline)
        parts = [(of * replica // replicas, of * (replica + 1) // replicas) for replica in own]
        dataset = train_parts(
            self.data.split("train"),
            parts,
            of=of,
            seed=self.config.train.seed,
            augment=section.augment,
            skip_steps=skip_steps,
            without=without,
        )
        return self._labelled(dataset)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def test(self, context: tf.distribute.InputContext) -> tf.data.Dataset:
        """Return one input pipeline's part of the test data."""
        batch = -(-self.config.data.batch_size // context.num_replicas_in_sync)
        return self._labelled(
            self.data.test(batch, shard=(context.input_pipeline_id, context.num_input_pipelines))
        )

    def _labelled(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        if not self.one_hot:
            return dataset
        classes = len(self.data.classes)
        convert = tf.autograph.experimental.do_not_convert(
            lambda images, labels: (images, tf.one_hot(labels, classes))
        )
        return dataset.map(convert, num_parallel_calls=tf.data.AUTOTUNE)
