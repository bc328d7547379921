"""Make what a config asks for: the compiled model, and the batches of training and test data."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.config import Config, TrainSection
from tfdist.data import Data
from tfdist.errors import ConfigError
from tfdist.models import build

__all__ = [
    "build_model",
    "compiled_model",
    "steps_per_epoch",
    "test_batches",
    "total_steps",
    "train_batches",
]


def steps_per_epoch(config: Config, data: Data) -> int:
    """Give the whole number of batches in the training data."""
    return max(1, data.train_examples // config.data.batch_size)


def total_steps(config: Config, data: Data) -> int:
    """Give the number of steps that a run takes."""
    return config.train.steps or config.train.epochs * steps_per_epoch(config, data)


def build_model(config: Config, data: Data) -> Any:
    """Build the model for the data's images and classes."""
    return build(config.model.name, data.image_shape, len(data.classes), **config.model.options)


def compiled_model(config: Config, data: Data) -> Any:
    """Build the model and compile it; call it in the strategy's scope."""
    model = build_model(config, data)
    jit_compile = config.train.jit_compile
    model.compile(
        _optimizer(config.train, total_steps(config, data)),
        tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        steps_per_execution=config.train.steps_per_execution,
        **({} if jit_compile is None else {"jit_compile": jit_compile}),
    )
    return model


# No flow depends on tensors here, and AutoGraph would take half a second to find that out.
@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def train_batches(
    context: tf.distribute.InputContext,
    data: Data,
    config: Config,
    *,
    skip_steps: int = 0,
    without: Sequence[int] = (),
) -> tf.data.Dataset:
    """Make one input pipeline's part of the training data, after so many of its steps and without some.

    Replicas that work in step share the global batch, as evenly as it goes: their number need not divide it.
    """
    section, pipelines = config.data, context.num_input_pipelines
    replicas = max(context.num_replicas_in_sync, pipelines)
    # Where workers go each at their own pace, a batch is one worker's.
    of = section.batch_size * (1 if context.num_replicas_in_sync >= pipelines else pipelines)
    if of < replicas:
        remedy = f"Say {replicas} or more, or take fewer replicas"
        problem = f"{of} examples cannot be shared by {replicas} replicas"
        raise ConfigError("data.batch_size", problem, remedy=remedy)
    each = replicas // pipelines
    own = range(context.input_pipeline_id * each, (context.input_pipeline_id + 1) * each)
    parts = [(of * replica // replicas, of * (replica + 1) // replicas) for replica in own]
    return data.train_parts(
        parts,
        of=of,
        seed=config.train.seed,
        augment=section.augment,
        skip_steps=skip_steps,
        without=without,
    )


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def test_batches(context: tf.distribute.InputContext, data: Data, config: Config) -> tf.data.Dataset:
    """Make one input pipeline's part of the test data."""
    batch = -(-config.data.batch_size // context.num_replicas_in_sync)
    return data.test(batch, shard=(context.input_pipeline_id, context.num_input_pipelines))


def _optimizer(section: TrainSection, steps: int) -> Any:
    rate = _learning_rate(section, steps)
    if section.optimizer == "adam":
        return tf.keras.optimizers.Adam(rate)
    momentum = 0.0 if section.optimizer == "sgd" else 0.9
    return tf.keras.optimizers.SGD(rate, momentum=momentum, nesterov=section.optimizer == "nesterov")


def _learning_rate(section: TrainSection, steps: int) -> Any:
    rate: Any = section.learning_rate
    rising = round(section.warmup * steps)
    if section.schedule == "cosine":
        rate = tf.keras.optimizers.schedules.CosineDecay(section.learning_rate, max(1, steps - rising))
    return Rising(section.learning_rate, rising, rate) if rising else rate


class Rising(tf.keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
    """Let the learning rate rise to its value over some steps, and then follow another schedule.

    Keras's CosineDecay can do that by itself, but not in its versions before 2.13.
    """

    def __init__(self, value: float, steps: int, then: Any) -> None:
        super().__init__()
        self.value, self.steps, self.then = value, steps, then

    def __call__(self, step: Any) -> tf.Tensor:
        step = tf.cast(step, tf.float32)
        later = tf.maximum(step - self.steps, 0.0)
        then = self.then(later) if callable(self.then) else tf.constant(self.then)
        # The first step is one on the way, too: a rate of 0 would waste it.
        return tf.where(step < self.steps, self.value * (step + 1) / (self.steps + 1), then)

    def get_config(self) -> dict[str, Any]:
        """Give the arguments that make this schedule again."""
        return {"value": self.value, "steps": self.steps, "then": self.then}
