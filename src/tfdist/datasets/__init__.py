"""Open image-classification data as tf.data pipelines: `open_data("mnist").train(batch=64, shard=(0, 2))`."""

from tfdist.datasets.open_data import Data, open_data

__all__ = ["Data", "open_data"]
