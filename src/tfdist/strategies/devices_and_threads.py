"""Configure the devices and threads of this process, which TensorFlow's first use of them fixes."""

import logging
import os
from typing import Any, get_args

import tensorflow as tf

from tfdist._utils.readable_text import count
from tfdist._utils.tf_private import are_devices_fixed
from tfdist.errors import ConfigError, did_you_mean, shown
from tfdist.strategies.options import Device

_log = logging.getLogger("tfdist")

# Each operation that waits for another task occupies a thread. With one thread per core of a small machine,
# all threads might wait, and none would be left to answer.
_LEAST_INTER_OP_THREADS = 8


def check_device(device: str, *, memory_growth: bool | None) -> None:
    """Raise ConfigError if this machine does not have the device."""
    check_device_name(device)
    has_gpus = bool(tf.config.list_physical_devices("GPU"))
    if device == "gpu" and not has_gpus:
        problem = "is gpu, but TensorFlow finds no GPU on this machine"
        remedy = "Set auto or cpu; or check that nvidia-smi lists one, and install tensorflow[and-cuda]"
        raise ConfigError("device", problem, remedy=remedy)
    if memory_growth is not None and (device == "cpu" or not has_gpus):
        why = "device is cpu" if has_gpus else "this machine has no GPU"
        raise ConfigError("memory_growth", f"has an effect only with GPUs, but {why}", remedy="Leave it out")


def check_device_name(device: str) -> None:
    """Raise ConfigError for an unknown kind of device."""
    if device not in get_args(Device):
        remedy = did_you_mean(device, get_args(Device))
        raise ConfigError("device", "is unknown: " + shown(device), remedy=remedy)


def device_kind() -> str:
    """Return the kind of device that this process computes on: GPU or CPU."""
    return "GPU" if tf.config.get_visible_devices("GPU") else "CPU"


def devices_to_compute_on() -> tuple[str, int]:
    """Return the kind of device that this process computes on, and how many it has, which may be logical."""
    kind = device_kind()
    splits = map(tf.config.get_logical_device_configuration, tf.config.get_visible_devices(kind))
    return kind, sum(len(split or (None,)) for split in splits)


def configure_devices(
    device: str,
    *,
    logical_devices: int | None = None,
    memory_growth: bool | None = None,
    intra_op_threads: int | None = None,
    inter_op_threads: int | None,
) -> None:
    """Set up the devices of this process; its CPU is split into logical devices where it has no GPU."""
    try:
        if intra_op_threads is not None:
            tf.config.threading.set_intra_op_parallelism_threads(intra_op_threads)
        if inter_op_threads is not None:
            tf.config.threading.set_inter_op_parallelism_threads(inter_op_threads)
        if device == "cpu" and tf.config.get_visible_devices("GPU"):
            tf.config.set_visible_devices([], "GPU")
        gpus = tf.config.get_visible_devices("GPU")
        for gpu in gpus if memory_growth is not None else ():
            tf.config.experimental.set_memory_growth(gpu, memory_growth)
        if logical_devices is not None and gpus:
            _log.info("logical_devices: has no effect on %s", count(len(gpus), "GPU"))
        elif logical_devices is not None:
            parts = [tf.config.LogicalDeviceConfiguration()] * logical_devices
            tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], parts)
    except (RuntimeError, ValueError) as error:
        raise ConfigError(
            "make_strategy", str(error), remedy="Call it before the first tensor is made"
        ) from error


def threads_to_wait() -> int | None:
    """Return the number of inter-op threads for a process whose operations wait for other tasks.

    None means no change: the user has set a number, or TensorFlow has fixed it already.
    """
    is_said = (
        os.environ.get("TF_NUM_INTEROP_THREADS") or tf.config.threading.get_inter_op_parallelism_threads()
    )
    if is_said or are_devices_fixed():
        return None
    return max(_LEAST_INTER_OP_THREADS, os.cpu_count() or 1)


def server_config(device: str, *, memory_growth: bool | None) -> Any:
    """Return the configuration of a TensorFlow server, which ignores the settings of its process."""
    return tf.compat.v1.ConfigProto(
        inter_op_parallelism_threads=_LEAST_INTER_OP_THREADS,
        device_count={"GPU": 0} if device == "cpu" else {},
        gpu_options=tf.compat.v1.GPUOptions(allow_growth=bool(memory_growth)),
    )
