"""Record what a run trains with: the cluster, the versions of the software, the machine and the devices."""

import os
import platform
from typing import Any

import tensorflow as tf

from tfdist import __version__
from tfdist._utils.readable_text import count
from tfdist._utils.strategy_kinds import is_asynchronous
from tfdist._utils.tf_private import worker_count
from tfdist.cluster.config import ClusterConfig
from tfdist.launcher.record_events import record
from tfdist.launcher.run_events import RunStarted
from tfdist.launcher.share_cores_and_gpus import own_cores


def record_start(cluster: ClusterConfig, strategy: tf.distribute.Strategy, /, **facts: Any) -> None:
    """Record the start of a run, about which `RunStarted` has more facts."""
    record(
        RunStarted(
            cluster=cluster.counts,
            addresses={str(task): cluster.address(task) for task in cluster.tasks()},
            machine=_machine(),
            devices=_devices_of(strategy),
            **facts,
        )
    )


def versions(keras: Any = None) -> dict[str, str]:
    """Return the versions that a run's records name; those of TensorFlow's Keras if no other is given."""
    keras = tf.keras if keras is None else keras
    return {
        "tfdist": __version__,
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "python": platform.python_version(),
    }


def _machine() -> dict[str, str]:
    """Describe the machine of this task."""
    gpus = [device.name for device in tf.config.list_physical_devices("GPU")]
    return {
        "host": platform.node(),
        "system": platform.platform(),
        "cores": f"{len(own_cores())} of {os.cpu_count()}",
        "GPUs": ", ".join(gpus) or "none",
    }


def _devices_of(strategy: tf.distribute.Strategy) -> str:
    """Return on how many devices of all tasks a strategy computes, such as `2 CPU devices`."""
    devices = strategy.num_replicas_in_sync * (worker_count(strategy) if is_asynchronous(strategy) else 1)
    try:
        is_on_gpus = "GPU" in strategy.extended.worker_devices[0]
    except RuntimeError:  # TensorFlow's default strategy has no list
        is_on_gpus = bool(tf.config.list_logical_devices("GPU"))
    return count(devices, "GPU" if is_on_gpus else "CPU device")
