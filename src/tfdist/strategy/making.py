"""Make the tf.distribute.Strategy that fits a cluster.

strategy = make_strategy(cluster)                      # from the cluster's shape and the devices
strategy = make_strategy(None, "mirrored", logical_devices=2)
"""

import contextlib
import logging
from collections.abc import Iterator
from typing import Any, Literal, get_args

import tensorflow as tf

from tfdist.addresses import is_free, port_taken, split_address
from tfdist.cluster import ClusterConfig
from tfdist.errors import ConfigError, did_you_mean, shown
from tfdist.strategy.kinds import Mirrored, MultiWorkerMirrored, ParameterServer, SynchronousParameterServer
from tfdist.strategy.shards import Cutter

__all__ = ["StrategyName", "make_strategy"]

_log = logging.getLogger("tfdist")

StrategyName = Literal[
    "auto", "one_device", "mirrored", "multi_worker_mirrored", "parameter_server", "parameter_server_sync"
]
Collective = Literal["auto", "ring", "nccl"]
Precision = Literal["float32", "float64", "mixed_float16", "mixed_bfloat16"]

# An option that only some strategies have; with another one it would do nothing.
_BELONGS_TO: dict[str, tuple[str, ...]] = {
    "collective": ("multi_worker_mirrored",),
    "bytes_per_pack": ("multi_worker_mirrored",),
    "collective_timeout": ("multi_worker_mirrored",),
    "min_shard_bytes": ("parameter_server", "parameter_server_sync"),
    "max_shards": ("parameter_server", "parameter_server_sync"),
    "logical_devices": ("one_device", "mirrored", "multi_worker_mirrored"),
}


def make_strategy(
    cluster: ClusterConfig | None = None,
    strategy: StrategyName = "auto",
    *,
    collective: Collective | None = None,
    bytes_per_pack: int | None = None,
    collective_timeout: float | None = None,
    min_shard_bytes: int | None = None,
    max_shards: int | None = None,
    logical_devices: int | None = None,
    memory_growth: bool | None = None,
    precision: Precision | None = None,
    intra_op_threads: int | None = None,
    inter_op_threads: int | None = None,
) -> tf.distribute.Strategy:
    """Make the strategy for this process, and connect it to the cluster.

    Call it before anything else touches TensorFlow's devices: threads, memory growth and logical devices are
    fixed once they are in use. TF_CONFIG need not be in the environment.

    Args:
        cluster: The cluster and this process's task; a single process where None.
        strategy: Which strategy; auto takes one that fits the cluster and the devices.
        collective: How multi_worker_mirrored adds gradients up: ring or nccl; auto lets TensorFlow choose.
        bytes_per_pack: How many bytes of gradients multi_worker_mirrored sends together; 0 means all.
        collective_timeout: Seconds after which a multi_worker_mirrored exchange that lacks a worker fails.
        min_shard_bytes: Split a variable over the parameter servers only into shards of at least this size.
        max_shards: Split a variable into at most so many shards; as many as there are ps tasks where None.
        logical_devices: Make so many devices out of the first GPU, or of the CPU where there is none.
        memory_growth: Take GPU memory as it is needed, not all at once.
        precision: The dtype policy of Keras from here on.
        intra_op_threads: Threads that work on one operation.
        inter_op_threads: Operations that run at once.
    """
    options = {
        "collective": collective,
        "bytes_per_pack": bytes_per_pack,
        "collective_timeout": collective_timeout,
        "min_shard_bytes": min_shard_bytes,
        "max_shards": max_shards,
        "logical_devices": logical_devices,
        "intra_op_threads": intra_op_threads,
        "inter_op_threads": inter_op_threads,
    }
    if strategy not in get_args(StrategyName):
        remedy = did_you_mean(strategy, get_args(StrategyName))
        raise ConfigError("strategy", "is unknown: " + shown(strategy), remedy=remedy)
    cluster = ClusterConfig() if cluster is None else cluster
    name = _choose(cluster, logical_devices) if strategy == "auto" else strategy
    _check_cluster(cluster, name)
    _check_options(options, name, collective, precision)
    _configure_devices(logical_devices, memory_growth, intra_op_threads, inter_op_threads)
    if precision is not None:
        tf.keras.mixed_precision.set_global_policy(precision)
    with _plain_errors(cluster):
        made = _make(cluster, name, options)
    _log.info("strategy %s: %d replicas in sync", name, made.num_replicas_in_sync)
    return made


def _choose(cluster: ClusterConfig, logical_devices: int | None) -> StrategyName:
    """Take the strategy that the cluster's shape and the devices call for."""
    training = ClusterConfig() if _is_evaluator(cluster) else cluster
    trainers = training.size("chief") + training.size("worker")
    gpus = len(tf.config.list_physical_devices("GPU"))
    devices = logical_devices or gpus
    name: StrategyName
    if training.size("ps"):
        name, why = "parameter_server", f"the cluster has {training.size('ps')} ps"
    elif trainers > 1:
        name, why = "multi_worker_mirrored", f"the cluster has {trainers} workers and no ps"
    elif devices > 1:
        name, why = "mirrored", f"one process with {devices} devices"
    else:
        name, why = "one_device", f"one process with {'one GPU' if gpus else 'no GPU'}"
    _log.info("strategy auto takes %s: %s", name, why)
    return name


def _is_evaluator(cluster: ClusterConfig) -> bool:
    return cluster.task is not None and cluster.task.type == "evaluator"


def _check_cluster(cluster: ClusterConfig, name: str) -> None:
    """Refuse a strategy that the cluster cannot run, or that this task has no part in."""
    trainers = cluster.size("chief") + cluster.size("worker")
    at = cluster.source.at("ps")
    alone = name in ("one_device", "mirrored")
    if alone and not _is_evaluator(cluster) and trainers + cluster.size("ps") > 1:
        problem = f"trains in one process, but the cluster has {trainers + cluster.size('ps')} tasks"
        raise ConfigError(f"strategy {name}", problem, remedy="Each would train on its own: take auto")
    if alone:
        return
    if cluster.task is None:
        problem = "needs to know which task of the cluster this is"
        remedy = "Give the cluster a task: cluster.with_task('worker', 0)"
        raise ConfigError(f"strategy {name}", problem, remedy=remedy)
    if _is_evaluator(cluster):
        problem = "is for the training cluster, and the evaluator is no part of it"
        raise ConfigError(f"strategy {name}", problem, remedy="Take auto, one_device or mirrored there")
    if name == "multi_worker_mirrored":
        if cluster.size("ps"):
            raise ConfigError(at, "has no work under multi_worker_mirrored", remedy="Take parameter_server")
        return
    for role in ("chief", "worker", "ps"):
        if not cluster.size(role):
            where, problem = cluster.source.at(role), f"is missing, and {name} needs a chief, workers and ps"
            raise ConfigError(where, problem, remedy=f"Add at least one {role}")
    if cluster.task.type != "chief":
        problem = f"is made by the chief, but this is {cluster.task}"
        raise ConfigError(f"strategy {name}", problem, remedy="Call tfdist.serve(cluster) on this task")


def _check_options(options: dict[str, Any], name: str, collective: str | None, precision: str | None) -> None:
    """Refuse an option that would do nothing, and a value that means nothing."""
    for key, value in options.items():
        owners = _BELONGS_TO.get(key)
        if value is not None and owners is not None and name not in owners:
            problem = f"does nothing under {name}"
            raise ConfigError(key, problem, remedy=f"Leave it out, or take {' or '.join(owners)}")
        if value is None or isinstance(value, str):
            continue
        least = 0 if key in ("bytes_per_pack", "intra_op_threads", "inter_op_threads") else 1
        is_number = isinstance(value, int) or (key == "collective_timeout" and isinstance(value, float))
        if isinstance(value, bool) or not is_number or value < (0 if isinstance(value, float) else least):
            raise ConfigError(key, expected=f"a number of at least {least}", received=shown(value))
    for key, word, known in (
        ("collective", collective, get_args(Collective)),
        ("precision", precision, get_args(Precision)),
    ):
        if word is not None and word not in known:
            raise ConfigError(key, "is unknown: " + shown(word), remedy=did_you_mean(word, known))


def _configure_devices(
    logical_devices: int | None,
    memory_growth: bool | None,
    intra_op_threads: int | None,
    inter_op_threads: int | None,
) -> None:
    gpus = tf.config.list_physical_devices("GPU")
    if memory_growth is not None and not gpus:
        raise ConfigError("memory_growth", "is about GPUs, and this machine has none", remedy="Leave it out")
    try:
        if intra_op_threads is not None:
            tf.config.threading.set_intra_op_parallelism_threads(intra_op_threads)
        if inter_op_threads is not None:
            tf.config.threading.set_inter_op_parallelism_threads(inter_op_threads)
        for gpu in gpus if memory_growth is not None else ():
            tf.config.experimental.set_memory_growth(gpu, memory_growth)
        if logical_devices is not None:
            device = (gpus or tf.config.list_physical_devices("CPU"))[0]
            parts = [tf.config.LogicalDeviceConfiguration()] * logical_devices
            tf.config.set_logical_device_configuration(device, parts)
    except (RuntimeError, ValueError) as error:
        raise ConfigError(
            "make_strategy", str(error), remedy="Call it before the first tensor is made"
        ) from error


def _make(cluster: ClusterConfig, name: str, options: dict[str, Any]) -> tf.distribute.Strategy:
    kind = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
    if name == "one_device":
        return tf.distribute.OneDeviceStrategy(f"/device:{kind}:0")
    if name == "mirrored":
        devices = [each.name for each in tf.config.list_logical_devices(kind)]
        # Several CPU devices of one process share its threads, and collectives on them wait for each other.
        reduction = tf.distribute.ReductionToOneDevice() if kind == "CPU" else None
        return Mirrored(devices, reduction)
    if name == "multi_worker_mirrored":
        return MultiWorkerMirrored(cluster.resolver(), _communication(options))
    if name == "parameter_server":
        return ParameterServer(cluster, _cutter(cluster, options))
    return SynchronousParameterServer(cluster, _cutter(cluster, options))


def _communication(options: dict[str, Any]) -> tf.distribute.experimental.CommunicationOptions:
    implementations = tf.distribute.experimental.CommunicationImplementation
    return tf.distribute.experimental.CommunicationOptions(
        bytes_per_pack=options["bytes_per_pack"] or 0,
        timeout_seconds=options["collective_timeout"],
        implementation=implementations[(options["collective"] or "auto").upper()],
    )


def _cutter(cluster: ClusterConfig, options: dict[str, Any]) -> Cutter | None:
    least, most = options["min_shard_bytes"], options["max_shards"]
    if least is None and most is None:
        return None
    return Cutter(min_shard_bytes=least, max_shards=cluster.size("ps") if most is None else most)


def _check_port(task: str, address: str) -> None:
    """Look whether the port is free before TensorFlow 2.12 does, which crashes where it is not."""
    from tensorflow.python.eager import context

    is_ours = context.get_server_def() is not None  # of a strategy that this process has made before
    if not is_ours and not is_free(split_address(address)[1]):
        raise port_taken(task, address)


@contextlib.contextmanager
def _plain_errors(cluster: ClusterConfig) -> Iterator[None]:
    """Say in one line that this task's port is taken, which TensorFlow says in many."""
    if cluster.task in cluster.training().tasks() and len(cluster.training().tasks()) > 1:
        _check_port(str(cluster.task), cluster.address(cluster.task))
    try:
        yield
    except (tf.errors.UnknownError, tf.errors.InternalError, tf.errors.AlreadyExistsError) as error:
        if "gRPC server" not in str(error) or cluster.task is None:
            raise
        raise port_taken(str(cluster.task), cluster.address(cluster.task)) from error
