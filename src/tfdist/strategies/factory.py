"""Make the tf.distribute.Strategy that fits a cluster.

strategy = make_strategy(cluster)                      # from the cluster's shape and the devices
strategy = make_strategy(None, "mirrored", logical_devices=2)
"""

import logging
from typing import Any, get_args

import tensorflow as tf

from tfdist._utils.readable_text import count
from tfdist._utils.tf_private import (
    are_devices_fixed,
    let_branches_look_up,
    let_variables_be_numbers,
    make_save_counters_outside_scopes,
)
from tfdist.cluster.config import ClusterConfig, Task
from tfdist.cluster.roles_and_task_counts import ROLES
from tfdist.coordination.end_announcements import shut_servers_down_at_exit
from tfdist.coordination.stop_signals import own_handler_restored
from tfdist.coordination.wait_for_tasks import START_TIMEOUT
from tfdist.errors import ConfigError, shown
from tfdist.strategies.choose_transport import (
    collectives_of,
    exchange_over_ring,
    shared_secret,
    shares_gpu,
    transfer_over_tcp,
)
from tfdist.strategies.cpu_malloc import keep_memory
from tfdist.strategies.current_cluster_and_strategy import remember
from tfdist.strategies.devices_and_threads import (
    check_device,
    configure_devices,
    device_kind,
    devices_to_compute_on,
    threads_to_wait,
)
from tfdist.strategies.options import (
    UNSET_BACKEND,
    Communication,
    Device,
    Precision,
    StrategyOptions,
    is_gpu_used,
)
from tfdist.strategies.share_random_state import share_random_state
from tfdist.strategies.strategy_classes import (
    Mirrored,
    MultiWorkerMirrored,
    ParameterServer,
    SynchronousParameterServer,
)
from tfdist.strategies.strategy_names import (
    OF_ONE_PROCESS,
    OF_PS,
    StrategyName,
    choose_strategy,
    strategy_name,
)
from tfdist.strategies.variable_partitioner import Partitioner
from tfdist.strategies.wait_then_connect import connecting, is_connected
from tfdist.transport.authentication import SECRET

_log = logging.getLogger("tfdist")


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
    heartbeat_timeout: float | None = None,
) -> tf.distribute.Strategy:
    """Make the strategy for this process, and connect to the cluster when all of its tasks have started.

    Call it before anything else uses TensorFlow's devices: the first use fixes threads, memory growth and
    logical devices. TF_CONFIG need not be in the environment.

    Args:
        cluster: The cluster and this process's task; None for a single process, which no variable of the
            environment may contradict: pass ClusterConfig.from_environment() or ClusterConfig() there.
        strategy: The strategy; auto takes one that fits the cluster and the devices.
        communication: How multi_worker_mirrored adds gradients up, such as {"implementation": "tcp"}.
        min_shard_bytes: Split a variable over the parameter servers only into shards of at least this size.
        max_shards: The largest number of shards of a variable; None for the number of ps tasks.
        device: The device to compute on: cpu, gpu, or auto, which takes GPUs if there are any.
        logical_devices: Without a GPU, split the CPU into this number of devices.
        memory_growth: Allocate GPU memory when it is needed, not all at once.
        precision: Keras's global dtype policy; None leaves it as it is.
        intra_op_threads: Threads that work on one operation.
        inter_op_threads: Operations that run at once. In a cluster the default is at least 8, because an
            operation that waits for another task occupies a thread.
        start_timeout: Seconds that the other tasks may take to start; 600 if None. Meanwhile the log names
            the missing tasks, and why they cannot be reached.
        heartbeat_timeout: Seconds without an answer after which a mirrored worker counts as lost; 10 if
            None. Give a longer time where machines stand still now and then, and all workers the same.

    Raises:
        ConfigError: Cluster, strategy and options do not fit together, or this task's port is taken.
        TaskLost: A task did not start in time.
    """
    check_is_cluster("make_strategy", cluster)
    cluster = _of_one_process() if cluster is None else cluster
    options = StrategyOptions.of(
        communication=communication,
        device=device,
        min_shard_bytes=min_shard_bytes,
        max_shards=max_shards,
        logical_devices=logical_devices,
        memory_growth=memory_growth,
        precision=precision,
        intra_op_threads=intra_op_threads,
        inter_op_threads=inter_op_threads,
        start_timeout=start_timeout,
        heartbeat_timeout=heartbeat_timeout,
    )
    name = _checked(cluster, strategy, options)
    _prepare_process(cluster, name, options)
    made = _connected(cluster, name, options)
    remember(cluster, made, name)
    _log.info("strategy %s: %s in sync", name, count(made.num_replicas_in_sync, "replica"))
    return made


def _of_one_process() -> ClusterConfig:
    """Return no cluster.

    Raises:
        ConfigError: By its environment, this process is one of several, each of which would train alone.
    """
    described = ClusterConfig.from_environment()
    if described.task is not None and not described.is_evaluator and len(described.training().tasks()) > 1:
        problem = f"is missing, but by its environment this process is {described.task} of several tasks"
        remedy = (
            "Pass cluster=ClusterConfig.from_environment(), or ClusterConfig() to train in this process alone"
        )
        raise ConfigError("make_strategy: cluster", problem, remedy=remedy)
    return ClusterConfig()


def check_is_cluster(where: str, cluster: object) -> None:
    """Raise ConfigError if a user's argument is something else than a cluster: a path, a name, a dict."""
    if cluster is not None and not isinstance(cluster, ClusterConfig):
        remedy = "Read one with ClusterConfig.from_environment() or ClusterConfig.from_yaml(path)"
        if cluster in ("auto", *get_args(StrategyName)):
            remedy = f"Write strategy={cluster!r}"
        expected, received = "a ClusterConfig", shown(cluster)
        raise ConfigError(f"{where}: cluster", expected=expected, received=received, remedy=remedy)


def _prepare_process(cluster: ClusterConfig, name: StrategyName, options: StrategyOptions) -> None:
    """Set what belongs to the process: devices, threads, memory and precision."""
    # Beside ps tasks the workers' GPUs count, and TensorFlow knows these only when all are connected.
    is_for_workers = name in OF_PS and options.device == "gpu"
    check_device("auto" if is_for_workers else options.device, memory_growth=options.memory_growth)
    inter_op_threads = options.inter_op_threads
    if inter_op_threads is None and len(cluster.training().tasks()) > 1:
        inter_op_threads = threads_to_wait()
    configure_devices(
        options.device,
        logical_devices=options.logical_devices,
        memory_growth=options.memory_growth,
        intra_op_threads=options.intra_op_threads,
        inter_op_threads=inter_op_threads,
    )
    keep_memory()
    let_variables_be_numbers()
    let_branches_look_up()
    make_save_counters_outside_scopes()
    if options.precision is not None:
        tf.keras.mixed_precision.set_global_policy(options.precision)


def _connected(
    cluster: ClusterConfig, name: StrategyName, options: StrategyOptions
) -> tf.distribute.Strategy:
    """Make a strategy, and connect it to the cluster when all of its tasks have started."""
    secret = shared_secret(cluster, name, options.communication)
    # The tasks must agree on these, or they would wait for each other in different exchanges.
    names = ("implementation", "dtype", "bytes_per_pack", "encryption")
    agreed = {
        "strategy": name,
        **{f"communication.{option}": getattr(options.communication, option) for option in names},
        "precision": options.precision,
        "heartbeat_timeout": options.heartbeat_timeout,
        "number of devices": "{1} {0}".format(*devices_to_compute_on()),
        "sharing of GPUs (set communication.implementation: ring)": options.communication.is_auto
        and shares_gpu(),
        f"{SECRET} (set or not)": secret is not None,
    }
    shared = None if name in OF_PS else agreed
    if name == "multi_worker_mirrored" and are_devices_fixed() and not is_connected():
        problem = "is called after TensorFlow was used, which can connect workers only before"
        raise ConfigError("make_strategy", problem, remedy="Call it right after the imports")
    timeout = START_TIMEOUT if options.start_timeout is None else options.start_timeout
    with own_handler_restored(), connecting("make_strategy", cluster, shared, timeout=timeout):
        made = _make(cluster, name, options)
        if secret is not None and name in OF_PS:
            transfer_over_tcp(made, cluster, options)
        elif secret is not None:
            exchange_over_ring(made, cluster, secret, options.communication)
        if name == "multi_worker_mirrored":
            share_random_state(made.summed_over_workers, is_chief=cluster.is_chief)
    return made


def check_strategy(cluster: ClusterConfig, strategy: str = "auto", **options: Any) -> StrategyName:
    """Raise ConfigError if cluster, strategy and options do not fit together; return the strategy's name."""
    return _checked(cluster, strategy, StrategyOptions.of(**options))


def _checked(cluster: ClusterConfig, strategy: str, options: StrategyOptions) -> StrategyName:
    backend = tf.keras.backend.backend()
    if backend != "tensorflow":
        raise ConfigError("Keras", expected="the backend tensorflow", received=backend, remedy=UNSET_BACKEND)
    gpus = len(tf.config.list_physical_devices("GPU"))
    devices = gpus if is_gpu_used(options.device, gpus) else options.logical_devices or 1
    name = strategy_name(strategy, cluster, devices=devices)
    if strategy == "auto":
        _log.info("strategy auto takes %s: %s", *choose_strategy(cluster, devices=devices))
    _check_fits(cluster, name)
    options.check(name)
    return name


def _check_fits(cluster: ClusterConfig, name: str) -> None:
    """Raise ConfigError for a strategy that the cluster cannot run, or that is not for this task."""
    trainers = cluster.size("chief") + cluster.size("worker")
    at = cluster.source.at("ps")
    if cluster.jobs:
        job = next(task.type for task in cluster.tasks() if task.type not in ROLES)
        problem = "is not supported in training, which has chief, workers and ps"
        raise ConfigError(cluster.source.at(job), problem, remedy="Leave it out, or take tfdist.connect")
    alone = name in OF_ONE_PROCESS
    if alone and not cluster.is_evaluator and trainers + cluster.size("ps") > 1:
        problem = f"trains in one process, but the cluster has {trainers + cluster.size('ps')} tasks"
        raise ConfigError(f"strategy {name}", problem, remedy="Each would train on its own: take auto")
    if alone:
        return
    if not cluster:
        problem = "needs a cluster, and nothing describes one"
        remedy = (
            "Add cluster: {worker: 2} to the config, start the script with tfdist launch, or set TF_CONFIG"
        )
        raise ConfigError(f"strategy {name}", problem, remedy=remedy)
    if cluster.task is None:
        problem = "needs to know which task of the cluster this is"
        remedy = "Set its task: cluster.with_task('worker', 0)"
        raise ConfigError(f"strategy {name}", problem, remedy=remedy)
    if cluster.is_evaluator:
        problem = "is for the training cluster, and the evaluator is not part of it"
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


def _make(cluster: ClusterConfig, name: StrategyName, options: StrategyOptions) -> Any:
    kind = device_kind()
    if name == "one_device":
        return tf.distribute.OneDeviceStrategy(f"/device:{kind}:0")
    if name == "mirrored":
        devices = [device.name for device in tf.config.list_logical_devices(kind)]
        # Several CPU devices of one process share its threads, and collectives on them wait for each other.
        reduction = tf.distribute.ReductionToOneDevice() if kind == "CPU" else None
        return Mirrored(devices, reduction)
    if name == "multi_worker_mirrored":
        return MultiWorkerMirrored(
            cluster.resolver(),
            collectives_of(options.communication),
            options.communication.timeout,
            START_TIMEOUT if options.start_timeout is None else options.start_timeout,
            options.heartbeat_timeout,
        )
    partitioner = _partitioner(cluster, options)
    if name == "parameter_server":
        made = ParameterServer(cluster, partitioner)
    else:
        made = SynchronousParameterServer(cluster, partitioner, options.device)
    if options.device == "gpu":
        _check_workers(cluster)
    shut_servers_down_at_exit(task for task in cluster.tasks() if task.type in ("ps", "worker"))
    return made


def _check_workers(cluster: ClusterConfig) -> None:
    """Raise ConfigError for a worker without a GPU; all tasks must be connected."""
    gpus = [gpu.name for gpu in tf.config.list_logical_devices("GPU")]
    for index in range(cluster.size("worker")):
        if not any(name.startswith(f"{Task('worker', index).device}/") for name in gpus):
            where = f"worker:{index} at {cluster.address(('worker', index))}"
            remedy = "Set auto or cpu; or check whether nvidia-smi lists a GPU there"
            raise ConfigError(where, "has no GPU that TensorFlow finds, but device is gpu", remedy=remedy)


def _partitioner(cluster: ClusterConfig, options: StrategyOptions) -> Partitioner | None:
    least, most = options.min_shard_bytes, options.max_shards
    if least is None and most is None:
        return None
    return Partitioner(min_shard_bytes=least, max_shards=cluster.size("ps") if most is None else most)
