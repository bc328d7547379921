"""Say how long the processors have worked for each task of a cluster."""

import os
import time

import tensorflow as tf

from tfdist.cluster import ClusterConfig

__all__ = ["processor_seconds"]


def processor_seconds(cluster: ClusterConfig) -> dict[str, float]:
    """Give the processors' seconds of this task and of those that serve it, whose kernels tell their own."""
    found = {str(cluster.task or "this process"): time.process_time()}
    for task in cluster.training().tasks():
        if cluster.with_task(*task).serves:
            with tf.device(f"/job:{task.type}/task:{task.index}"):
                stat = tf.io.read_file("/proc/self/stat")
            # What comes after the name, which may hold anything, and is in brackets.
            fields = stat.numpy().decode().rpartition(")")[2].split()
            found[str(task)] = sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
    return found
