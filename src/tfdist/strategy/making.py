"""Make the tf.distribute.Strategy that fits a cluster.

strategy = make_strategy(cluster)                      # from the cluster's shape and the devices
strategy = make_strategy(None, "mirrored", logical_devices=2)
"""

import logging
from collections.abc import Mapping
from typing import Any, Literal, TypedDict, get_args

import tensorflow as tf

from tfdist.allocation import keep_memory
from tfdist.cluster import ClusterConfig
from tfdist.devices import Device, check_device, configure_devices, device_kind, threads_to_wait
from tfdist.environments import ROLES
from tfdist.errors import ConfigError, did_you_mean, shown
from tfdist.exchange import WireType
from tfdist.farewell import say_farewell_at_exit
from tfdist.strategy.collectives import (
    check_implementation,
    collectives_of,
    exchange_over_ring,
    send_by_post,
    shared_secret,
)
from tfdist.strategy.connecting import connecting
from tfdist.strategy.kinds import Mirrored, MultiWorkerMirrored, ParameterServer, SynchronousParameterServer
from tfdist.strategy.shards import Cutter

__all__ = ["Communication", "StrategyName", "check_strategy", "make_strategy"]

_log = logging.getLogger("tfdist")

StrategyName = Literal[
    "auto", "one_device", "mirrored", "multi_worker_mirrored", "parameter_server", "parameter_server_sync"
]
Implementation = Literal["auto", "tcp", "grpc", "ring", "nccl"]
Precision = Literal["float32", "float64", "mixed_float16", "mixed_bfloat16"]


class Communication(TypedDict, total=False):
    """Say how mirrored workers add gradients up, and how tensors cross to parameter servers and back.

    Attributes:
        implementation: tcp, over connections of tfdist's own between tasks that share a secret
            (TFDIST_SECRET); by TensorFlow: ring or nccl between mirrored workers, grpc to parameter servers.
            auto takes tcp on CPUs where there is a secret and bytes_per_pack does not ask for TensorFlow's
            packs, and else lets TensorFlow choose.
        dtype: What numbers of 32 bits travel as with tcp: bfloat16, float16 and int8 round them on the way,
            which changes what is computed; float32, the default, does not.
        bytes_per_pack: How many bytes of gradients TensorFlow sends together; 0 means all.
        timeout: Seconds after which an exchange that lacks a task fails.
    """

    implementation: Implementation
    dtype: WireType
    bytes_per_pack: int
    timeout: float


_WORDS = {
    "communication.implementation": get_args(Implementation),
    "communication.dtype": get_args(WireType),
    "precision": get_args(Precision),
}
_OF_PS = ("parameter_server", "parameter_server_sync")
_START_TIMEOUT = 600.0

# An option that only some strategies have; with another one it would do nothing.
_BELONGS_TO: dict[str, tuple[str, ...]] = {
    "communication.implementation": ("multi_worker_mirrored", *_OF_PS),
    "communication.dtype": ("multi_worker_mirrored", *_OF_PS),
    "communication.bytes_per_pack": ("multi_worker_mirrored",),
    "communication.timeout": ("multi_worker_mirrored", *_OF_PS),
    "start_timeout": ("multi_worker_mirrored", *_OF_PS),
    "min_shard_bytes": _OF_PS,
    "max_shards": _OF_PS,
    "logical_devices": ("one_device", "mirrored", "multi_worker_mirrored"),
    "memory_growth": ("one_device", "mirrored", "multi_worker_mirrored"),
}


def make_strategy(
    cluster: ClusterConfig | None = None,
    strategy: StrategyName = "auto",
    *,
    communication: Communication | None = None,
    min_shard_bytes: int | None = None,
    max_shards: int | None = None,
    device: Device = "auto",
    logical_devices: int | None = None,
    memory_growth: bool | None = None,
    precision: Precision | None = None,
    intra_op_threads: int | None = None,
    inter_op_threads: int | None = None,
    start_timeout: float | None = None,
) -> tf.distribute.Strategy:
    """Make the strategy for this process, and connect it to the cluster once all of its tasks are there.

    Call it before anything else touches TensorFlow's devices: threads, memory growth and logical devices are
    fixed once they are in use. TF_CONFIG need not be in the environment.

    Args:
        cluster: The cluster and this process's task; a single process where None.
        strategy: Which strategy; auto takes one that fits the cluster and the devices.
        communication: How multi_worker_mirrored adds gradients up, such as {"implementation": "tcp"}.
        min_shard_bytes: Split a variable over the parameter servers only into shards of at least this size.
        max_shards: Split a variable into at most so many shards; as many as there are ps tasks where None.
        device: What is computed on: gpu, or cpu, or GPUs where there are any.
        logical_devices: Make so many devices out of the first GPU, or of the CPU where there is none.
        memory_growth: Take GPU memory as it is needed, not all at once.
        precision: The dtype policy of Keras from here on.
        intra_op_threads: Threads that work on one operation.
        inter_op_threads: Operations that run at once; in a cluster at least 8 where nobody says otherwise,
            since one that waits for another task counts.
        start_timeout: Seconds that the other tasks may take to come up, 600 where None. Who is awaited, and
            why they cannot be reached, is said in the log meanwhile.

    Raises:
        ConfigError: Cluster, strategy and options do not go together, or this task's port is taken.
        TaskLost: A task has not come up in time.
    """
    cluster = ClusterConfig() if cluster is None else cluster
    options = {
        **_flat(communication),
        "min_shard_bytes": min_shard_bytes,
        "max_shards": max_shards,
        "logical_devices": logical_devices,
        "memory_growth": memory_growth,
        "precision": precision,
        "intra_op_threads": intra_op_threads,
        "inter_op_threads": inter_op_threads,
        "start_timeout": start_timeout,
    }
    name = _checked(cluster, strategy, device, options)
    # Where workers compute on behalf of the chief, their GPUs are in question: known when all are connected.
    is_theirs = name in _OF_PS and device == "gpu"
    check_device("auto" if is_theirs else device, memory_growth=memory_growth)
    if inter_op_threads is None and len(cluster.training().tasks()) > 1:
        inter_op_threads = threads_to_wait()
    configure_devices(
        device,
        logical_devices=logical_devices,
        memory_growth=memory_growth,
        intra_op_threads=intra_op_threads,
        inter_op_threads=inter_op_threads,
    )
    keep_memory()
    if precision is not None:
        tf.keras.mixed_precision.set_global_policy(precision)
    secret = shared_secret(cluster, name, options)
    # What the tasks must agree on, or they would wait for each other in different exchanges.
    said = (options[f"communication.{key}"] for key in ("implementation", "dtype", "bytes_per_pack"))
    agreed = (name, *said, precision, secret is not None)
    shared = None if name in _OF_PS else agreed
    timeout = _START_TIMEOUT if start_timeout is None else start_timeout
    with connecting("make_strategy", cluster, shared, timeout=timeout):
        made = _make(cluster, name, device, options)
        if secret is not None and name in _OF_PS:
            send_by_post(made, cluster, device, options)
        elif secret is not None:
            exchange_over_ring(made, cluster, secret, options)
    _log.info("strategy %s: %d replicas in sync", name, made.num_replicas_in_sync)
    return made


def check_strategy(
    cluster: ClusterConfig,
    strategy: str = "auto",
    *,
    device: str = "auto",
    communication: Communication | None = None,
    **options: Any,
) -> StrategyName:
    """Refuse what a cluster, a strategy and its options cannot do together; give the strategy's name."""
    return _checked(cluster, strategy, device, {**_flat(communication), **options})


def _flat(communication: Mapping[str, Any] | None) -> dict[str, Any]:
    """Give the options by their names in a config; None where nothing is said."""
    known = Communication.__annotations__
    for key in communication or {}:
        if key not in known:
            raise ConfigError("communication", f"unknown key {shown(key)}", remedy=did_you_mean(key, known))
    return {f"communication.{key}": (communication or {}).get(key) for key in known}


def _checked(cluster: ClusterConfig, strategy: str, device: str, options: Mapping[str, Any]) -> StrategyName:
    if strategy not in get_args(StrategyName):
        remedy = did_you_mean(strategy, get_args(StrategyName))
        raise ConfigError("strategy", "is unknown: " + shown(strategy), remedy=remedy)
    given = {key: value for key, value in options.items() if value is not None}
    name: Any = _choose(cluster, device, options.get("logical_devices")) if strategy == "auto" else strategy
    _check_cluster(cluster, name)
    _check_options(given, name)
    return name  # type: ignore[no-any-return]


def _choose(cluster: ClusterConfig, device: str, logical_devices: int | None) -> StrategyName:
    """Take the strategy that the cluster's shape and the devices call for."""
    training = ClusterConfig() if _is_evaluator(cluster) else cluster
    trainers = training.size("chief") + training.size("worker")
    gpus = 0 if device == "cpu" else len(tf.config.list_physical_devices("GPU"))
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
    if cluster.jobs:
        job = next(task.type for task in cluster.tasks() if task.type not in ROLES)
        problem = "has no part in training, which knows chief, workers and ps"
        raise ConfigError(cluster.source.at(job), problem, remedy="Leave it out, or take tfdist.connect")
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


def _check_options(options: Mapping[str, Any], name: str) -> None:
    """Refuse an option that would do nothing, and a value that means nothing."""
    for key, value in options.items():
        owners = _BELONGS_TO.get(key)
        if owners is not None and name not in owners:
            remedy = f"Leave it out, or take {' or '.join(owners)}"
            if key == "memory_growth":
                remedy = "Give it to tfdist.serve on the workers"
            raise ConfigError(key, f"does nothing under {name}", remedy=remedy)
        known = _WORDS.get(key)
        if known is not None and value not in known:
            raise ConfigError(key, "is unknown: " + shown(value), remedy=did_you_mean(value, known))
        if key == "communication.implementation":
            check_implementation(name, value)
        if known is not None or key == "memory_growth":
            continue
        least = 0 if key in ("communication.bytes_per_pack", "intra_op_threads", "inter_op_threads") else 1
        is_number = isinstance(value, int) or (key.endswith("timeout") and isinstance(value, float))
        if isinstance(value, bool) or not is_number or value < (0 if isinstance(value, float) else least):
            raise ConfigError(key, expected=f"a number of at least {least}", received=shown(value))


def _make(
    cluster: ClusterConfig, name: str, device: str, options: Mapping[str, Any]
) -> tf.distribute.Strategy:
    kind = device_kind()
    if name == "one_device":
        return tf.distribute.OneDeviceStrategy(f"/device:{kind}:0")
    if name == "mirrored":
        devices = [each.name for each in tf.config.list_logical_devices(kind)]
        # Several CPU devices of one process share its threads, and collectives on them wait for each other.
        reduction = tf.distribute.ReductionToOneDevice() if kind == "CPU" else None
        return Mirrored(devices, reduction)
    if name == "multi_worker_mirrored":
        return MultiWorkerMirrored(
            cluster.resolver(), collectives_of(options), options["communication.timeout"]
        )
    cutter = _cutter(cluster, options)
    if name == "parameter_server":
        made = ParameterServer(cluster, cutter)
    else:
        made = SynchronousParameterServer(cluster, cutter, device)
    if device == "gpu":
        _check_workers(cluster)
    servers = [task for task in cluster.tasks() if task.type in ("ps", "worker")]
    say_farewell_at_exit([f"/job:{job}/task:{index}" for job, index in servers])
    return made


def _check_workers(cluster: ClusterConfig) -> None:
    """Refuse a worker without a GPU, now that all are connected."""
    gpus = [each.name for each in tf.config.list_logical_devices("GPU")]
    for index in range(cluster.size("worker")):
        if not any(f"/job:worker/replica:0/task:{index}/" in name for name in gpus):
            where = f"worker:{index} at {cluster.address(('worker', index))}"
            remedy = "Say auto or cpu; or see whether nvidia-smi lists it there"
            raise ConfigError(where, "has no GPU for TensorFlow, but device is gpu", remedy=remedy)


def _cutter(cluster: ClusterConfig, options: Mapping[str, Any]) -> Cutter | None:
    least, most = options["min_shard_bytes"], options["max_shards"]
    if least is None and most is None:
        return None
    return Cutter(min_shard_bytes=least, max_shards=cluster.size("ps") if most is None else most)
