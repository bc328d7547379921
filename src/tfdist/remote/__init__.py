"""Compute on the tasks of a cluster: on one that is chosen, or on whichever is free.

with tfdist.connect(cluster) as remote:
    with remote.device("worker", 1):
        there = tf.linalg.inv(matrix)
    means = remote.map(tf.function(lambda part: tf.reduce_mean(part, axis=0)), parts)
    mean = remote.reduce("mean", means)
"""

from tfdist.remote.connection import Remote, connect
from tfdist.remote.reducing import Parts

__all__ = ["Parts", "Remote", "connect"]
