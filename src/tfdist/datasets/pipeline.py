"""Read prepared examples as batches; the seed and the step alone determine the contents of a batch.

Training reads an endless sequence of positions: epoch 0's examples in shuffled order, then epoch 1's, and so
on. Global step g takes the next batch × shards of them, and shard i takes the i-th part of these. Therefore:

- All shards together read each example once an epoch.
- All global batches have the same size; a batch may contain the end of one epoch and the start of the next.
- At each step, N shards of batch B read the same examples as one process of batch N × B. N parts of unequal
  sizes do too.
- Starting at step n costs no time.

The task that runs the pipeline maps the files into its memory. The graph contains only their paths, so a
coordinator can send it to a parameter-server worker. The tasks of one machine share the system's page cache.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.datasets.augmentation import AUGMENTATIONS, draws
from tfdist.datasets.disk_cache import Split
from tfdist.errors import ConfigError, did_you_mean

_ENDLESS = 2**62
# With TensorFlow's default of 4, the orders of two consecutive epochs of 60,000 examples correlate by 0.9.
_ROUNDS = 16


def train_batches(
    split: Split, batch: int, *, shard: tuple[int, int], seed: int, augment: str, skip_steps: int
) -> Any:
    """Return the endless training batches of one shard, from step `skip_steps` on."""
    _check(batch, shard, seed, skip_steps)
    index, count = shard
    own = [(index * batch, (index + 1) * batch)]
    return train_parts(split, own, of=count * batch, seed=seed, augment=augment, skip_steps=skip_steps)


def train_parts(
    split: Split,
    parts: Sequence[tuple[int, int]],
    *,
    of: int,
    seed: int,
    augment: str,
    skip_steps: int,
    without: Sequence[int] = (),
) -> Any:
    """Return the endless training batches of these parts of every step, one part after the other.

    Args:
        split: The training data.
        parts: Start and end of each part among a step's examples.
        of: The number of examples of a step.
        seed: Determines order and augmentation.
        augment: One of AUGMENTATIONS.
        skip_steps: The first step.
        without: The steps to leave out; the steps after them move up.
    """
    if augment not in AUGMENTATIONS:
        raise ConfigError("augment", f"there is no '{augment}'", remedy=did_you_mean(augment, AUGMENTATIONS))
    images, labels = _mapped(split)
    alter = AUGMENTATIONS[augment]
    sizes = [stop - start for start, stop in parts]
    largest = max(sizes)

    def make(number: Any) -> tuple[Any, Any]:
        step, turn = number // len(parts), number % len(parts)
        first = step * of + tf.gather(tf.constant([start for start, _ in parts], tf.int64), turn)
        rows = _shuffled(first + tf.range(largest, dtype=tf.int64), split.examples, seed)
        pixels = tf.gather(images, rows)
        if alter is not None:
            pixels = alter(pixels, draws(first, largest, seed))
        if min(sizes) == largest:
            return pixels, tf.gather(labels, rows)
        size = tf.gather(tf.constant(sizes), turn)
        return pixels[:size], tf.gather(labels, rows)[:size]

    numbers = tf.data.Dataset.range(skip_steps * len(parts), _ENDLESS // of * len(parts))
    if without:
        left_out = tf.constant(sorted(without), tf.int64)
        numbers = numbers.filter(lambda number: tf.reduce_all(number // len(parts) != left_out))
    is_all = sum(sizes) == of
    return _finished(_mapped_over(numbers, make), 1 if is_all else of)


def test_batches(split: Split, batch: int, *, shard: tuple[int, int]) -> Any:
    """Return one shard's test batches; all shards together read each example once.

    The last batch may be smaller.
    """
    _check(batch, shard)
    index, count = shard
    images, labels = _mapped(split)

    def make(start: Any) -> tuple[Any, Any]:
        return images[start : start + batch], labels[start : start + batch]

    starts = tf.data.Dataset.range(index * batch, split.examples, count * batch)
    return _finished(_mapped_over(starts, make), count)


def _mapped(split: Split) -> tuple[Any, Any]:
    """Map a split's files into memory as tensors; the system loads their pages on first use."""
    # The op runs on the device of the pipeline, and only CPUs have a kernel for it.
    with tf.device("CPU:0"):
        return tuple(
            tf.raw_ops.ImmutableConst(dtype=dtype, shape=shape, memory_region_name=path)
            for path, dtype, shape in (
                (split.images, tf.uint8, (split.examples, *split.image_shape)),
                (split.labels, tf.int32, (split.examples,)),
            )
        )


def _shuffled(positions: Any, examples: int, seed: int) -> Any:
    """Return the rows at these positions in the sequence of all epochs' shuffled orders."""
    epochs = positions // examples
    # A pseudo-random permutation that is computed for each position alone: it needs no buffer, and a start at
    # a later position costs nothing. (The public tf.random.experimental.index_shuffle fails with one seed for
    # each element, because it pads the wrong axis.)
    low, high = seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF
    seeds = tf.stack([tf.fill(tf.shape(epochs), tf.constant(part, tf.int64)) for part in (low, high)], axis=1)
    return tf.raw_ops.RandomIndexShuffle(
        index=positions % examples,
        seed=tf.cast(tf.concat([seeds, epochs[:, None]], axis=1), tf.uint32),
        max_index=tf.constant(examples - 1, tf.int64),
        rounds=_ROUNDS,
    )


def _mapped_over(dataset: Any, make: Callable[[Any], Any]) -> Any:
    # `make` has no control flow for AutoGraph, whose analysis would take a fifth of a second.
    return dataset.map(tf.autograph.experimental.do_not_convert(make), num_parallel_calls=tf.data.AUTOTUNE)


def _finished(dataset: Any, shards: int) -> Any:
    options = tf.data.Options()
    options.deterministic = True
    if shards > 1:
        # These batches are one shard already; TensorFlow would take every n-th of them.
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return dataset.prefetch(tf.data.AUTOTUNE).with_options(options)


def _check(batch: int, shard: tuple[int, int], seed: int = 0, skip_steps: int = 0) -> None:
    index, count = shard
    for name, value in (("seed", seed), ("skip_steps", skip_steps)):
        if not 0 <= value < 2**63:
            raise ConfigError(name, expected="a whole number from 0", received=str(value))
    if batch < 1:
        raise ConfigError("batch", expected="a number of examples from 1", received=str(batch))
    if not 0 <= index < count:
        raise ConfigError(
            "shard", expected="(index, count) with 0 <= index < count", received=f"({index}, {count})"
        )
