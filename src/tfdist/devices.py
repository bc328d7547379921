"""Say what this process computes on, before TensorFlow uses its devices: after that they are fixed."""

import os
from typing import Any, Literal, get_args

import tensorflow as tf
from tensorflow.python.eager import context

from tfdist.errors import ConfigError, did_you_mean, shown

__all__ = [
    "Device",
    "check_device",
    "check_device_name",
    "configure_devices",
    "device_kind",
    "server_config",
    "threads_to_wait",
]

Device = Literal["auto", "cpu", "gpu"]

# Operations that wait for another task hold a thread each: with as many threads as a small machine has
# cores, all may wait and none be left to answer.
_LEAST_INTER_OP_THREADS = 8


def check_device(device: str, *, memory_growth: bool | None = None) -> None:
    """Refuse what this machine has not."""
    check_device_name(device)
    has_gpus = bool(tf.config.list_physical_devices("GPU"))
    if device == "gpu" and not has_gpus:
        problem = "gpu is asked for, but TensorFlow finds none on this machine"
        remedy = "Say auto or cpu; or see whether nvidia-smi lists it, and install tensorflow[and-cuda]"
        raise ConfigError("device", problem, remedy=remedy)
    if memory_growth is not None and (device == "cpu" or not has_gpus):
        why = "nothing is to be computed on one" if has_gpus else "this machine has none"
        raise ConfigError("memory_growth", f"is about GPUs, and {why}", remedy="Leave it out")


def check_device_name(device: str) -> None:
    """Refuse a word that names no kind of device."""
    if device not in get_args(Device):
        remedy = did_you_mean(device, get_args(Device))
        raise ConfigError("device", "is unknown: " + shown(device), remedy=remedy)


def device_kind() -> str:
    """Say what this process computes on: GPU or CPU."""
    return "GPU" if tf.config.get_visible_devices("GPU") else "CPU"


def configure_devices(
    device: str,
    *,
    logical_devices: int | None = None,
    memory_growth: bool | None = None,
    intra_op_threads: int | None = None,
    inter_op_threads: int | None = None,
) -> None:
    """Set up the devices of this process."""
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
        if logical_devices is not None:
            parts = [tf.config.LogicalDeviceConfiguration()] * logical_devices
            first = (gpus or tf.config.list_physical_devices("CPU"))[0]
            tf.config.set_logical_device_configuration(first, parts)
    except (RuntimeError, ValueError) as error:
        raise ConfigError(
            "make_strategy", str(error), remedy="Call it before the first tensor is made"
        ) from error


def threads_to_wait() -> int | None:
    """Give the operations that are to run at once where some of them wait for another task, for ever perhaps.

    None leaves it as it is: somebody has said so, or it is fixed already.
    """
    is_said = (
        os.environ.get("TF_NUM_INTEROP_THREADS") or tf.config.threading.get_inter_op_parallelism_threads()
    )
    if is_said or context.context()._context_handle is not None:
        return None
    return max(_LEAST_INTER_OP_THREADS, os.cpu_count() or 1)


def server_config(device: str, *, memory_growth: bool | None = None) -> Any:
    """Make the configuration of a server, which what is set up for its process does not reach."""
    return tf.compat.v1.ConfigProto(
        inter_op_parallelism_threads=_LEAST_INTER_OP_THREADS,
        device_count={"GPU": 0} if device == "cpu" else {},
        gpu_options=tf.compat.v1.GPUOptions(allow_growth=bool(memory_growth)),
    )
