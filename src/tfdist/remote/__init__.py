"""Compute on the tasks of a cluster: on a chosen task, or on any free one.

with tfdist.connect(cluster) as remote:
    with remote.device("worker", 1):
        there = tf.linalg.inv(matrix)
    means = remote.map(tf.function(lambda part: tf.reduce_mean(part, axis=0)), parts)
    mean = remote.reduce("mean", means)
"""
