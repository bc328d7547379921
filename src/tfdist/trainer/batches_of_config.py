"""Open the data that a config describes, and divide them into batches for the workers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdist._utils.strategy_kinds import is_asynchronous
from tfdist.datasets.open_data import Data, DataRequest
from tfdist.datasets.pipeline import train_parts
from tfdist.errors import ConfigError
from tfdist.launcher.record_events import is_launched
from tfdist.trainer.config import Config
from tfdist.trainer.losses_and_metrics import has_one_hot_labels


def open_run_data(config: Config) -> Data:
    """Open the data of a run; under a launcher, which has opened them before, do not repeat its warning."""
    return DataRequest(**config.data.wanted()).open(warns=not is_launched())


def note_of_large_batch(config: Config, data: Data) -> str:
    """Return what a batch of more examples than the training data have does; empty for others."""
    batch, images = config.data.batch_size, data.train_examples
    if batch <= images:
        return ""
    return f"data.batch_size {batch} exceeds the {images} training images: a step repeats some"


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
