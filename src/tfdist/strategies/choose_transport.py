"""Choose how tensors travel between tasks: over tfdist's own TCP connections, or through TensorFlow."""

import logging
import os
import time

import tensorflow as tf

from tfdist.cluster.config import ClusterConfig
from tfdist.coordination.background_threads import each_in_time
from tfdist.coordination.grpc_health_probe import answers
from tfdist.errors import ConfigError, TaskLost
from tfdist.launcher.share_cores_and_gpus import SHARES_GPU
from tfdist.strategies.devices_and_threads import device_kind, devices_to_compute_on
from tfdist.strategies.options import CommunicationOptions, StrategyOptions, is_gpu_used
from tfdist.strategies.ps_transfer import PsTransfer
from tfdist.strategies.strategy_classes import (
    MultiWorkerMirrored,
    ParameterServer,
    SynchronousParameterServer,
)
from tfdist.strategies.strategy_names import StrategyName, exchanges_tensors
from tfdist.transport.authentication import SECRET, SECRET_FILE, find_secret
from tfdist.transport.listen_and_call import ConnectError
from tfdist.transport.tls import check_tls

_SECONDS_TO_BE_GONE = 2.0  # for a process that ends: its listeners do not close all at once
_SECONDS_BETWEEN_LOOKS = 0.2
_SECONDS_TO_ANSWER = 10.0
_MOST_NAMED = 3
_log = logging.getLogger("tfdist")


def collectives_of(options: CommunicationOptions) -> tf.distribute.experimental.CommunicationOptions:
    """Return the options of TensorFlow's collectives, which exchange all that no ring exchanges.

    They leave `timeout_seconds` unset: `TimeLimit` ends a slow exchange.
    """
    implementations = tf.distribute.experimental.CommunicationImplementation
    implementation = "auto" if options.needs_tcp else options.wanted
    if implementation == "auto" and shares_gpu():
        _log.info("communication.implementation auto: replicas share a GPU, so they exchange by gRPC")
        implementation = "ring"
    return tf.distribute.experimental.CommunicationOptions(
        bytes_per_pack=options.bytes_per_pack or 0, implementation=implementations[implementation.upper()]
    )


def shares_gpu() -> bool:
    """Return whether a GPU has several replicas, of this task or of others; NCCL takes no GPU twice."""
    kind, devices = devices_to_compute_on()
    is_split = devices > len(tf.config.get_visible_devices(kind))
    return kind == "GPU" and (is_split or SHARES_GPU in os.environ)


def shared_secret(cluster: ClusterConfig, name: StrategyName, options: CommunicationOptions) -> bytes | None:
    """Return the secret by which tasks recognize each other; None if TensorFlow sends all tensors."""
    if not exchanges_tensors(name, cluster):
        return None
    on_gpus = device_kind() == "GPU"
    if not options.may_use_tcp(on_gpus=on_gpus):
        if on_gpus and options.is_auto and cluster.is_chief:
            _log.info("communication.implementation auto: GPUs exchange by TensorFlow (NCCL, gRPC)")
        return None
    if options.is_encrypted:
        check_tls()
    secret = find_secret()
    if secret is None and options.needs_tcp:
        problem = "needs a secret by which the tasks recognize each other; the launcher makes one"
        remedy = f"Set {SECRET} or {SECRET_FILE} to the same secret for all tasks"
        own = "ring" if name == "multi_worker_mirrored" else "grpc"
        raise ConfigError(options.tcp_wish, problem, remedy=remedy + _or_set(options, own))
    if secret is None and cluster.is_chief:
        _log.warning(
            "the tasks share no secret, so tensors travel over TensorFlow's gRPC, which is slower than "
            "tfdist's own transport. Set %s to the same secret for all tasks: "
            "python3 -c 'import secrets; print(secrets.token_hex(32))'",
            SECRET,
        )
    return secret


def exchange_over_ring(
    strategy: MultiWorkerMirrored, cluster: ClusterConfig, secret: bytes, options: CommunicationOptions
) -> None:
    """Add gradients up over a ring; if the tasks cannot connect, raise or log it, as `options` demand."""
    try:
        strategy.use_ring(
            cluster,
            secret,
            wire_type=options.dtype or "float32",
            # An explicit tcp means bytes on the wire, also on one machine.
            may_share=not options.needs_tcp,
            is_encrypted=options.is_encrypted,
        )
    except ConnectError as error:
        instead = "gradients use TensorFlow's own collectives, which are slower"
        _leave_to_tensorflow(error, options, instead, "ring")
    else:
        tasks = len(cluster.training().tasks())
        _log.info("using the TCP transport%s: a ring of %d tasks", _by_tls(options), tasks)


def transfer_over_tcp(
    strategy: ParameterServer | SynchronousParameterServer, cluster: ClusterConfig, options: StrategyOptions
) -> None:
    """Use the TCP transport; if the tasks cannot connect, raise or log it, as `options` demand.

    Raises:
        ConfigError: The tasks cannot connect, and the user asks for tcp.
        TaskLost: A task does not answer.
    """
    communication = options.communication
    gpus = [gpu for gpu in tf.config.list_logical_devices("GPU") if "/job:worker/" in gpu.name]
    if not communication.may_use_tcp(on_gpus=is_gpu_used(options.device, len(gpus))):
        return
    if strategy.num_replicas_in_sync > 1 and isinstance(strategy, ParameterServer):
        problem = "is not supported with workers that compute on several devices"
        remedy = "Set device cpu" + _or_set(communication, "grpc")
        raise ConfigError(communication.tcp_wish, problem, remedy=remedy)
    try:
        strategy.ps_transfer = PsTransfer(
            cluster.training(),
            wire_type=communication.dtype or "float32",
            is_in_step=isinstance(strategy, SynchronousParameterServer),
            timeout=communication.timeout,
            is_asked_for=communication.needs_tcp,
            is_encrypted=communication.is_encrypted,
        )
    except ConnectError as error:
        _check_present(cluster, error)
        instead = "variables and gradients use TensorFlow's gRPC, which is slower"
        _leave_to_tensorflow(error, communication, instead, "grpc")
    else:
        _log.info("using the TCP transport%s for the variables and gradients of fit", _by_tls(communication))


def _check_present(cluster: ClusterConfig, error: ConnectError) -> None:
    """Raise TaskLost if tasks cannot connect because one of them is gone, or is silent."""
    others = {task: cluster.address(task) for task in cluster.training().tasks() if task != cluster.task}
    end = time.monotonic() + _SECONDS_TO_BE_GONE
    while time.monotonic() < end:
        known = each_in_time(answers, others.values(), _SECONDS_TO_ANSWER)
        if missing := [task for task, address in others.items() if not known.get(address)]:
            problem = f"cannot connect the tasks, since it does not answer ({error})"
            remedy = "Its own log may say why; start the cluster again"
            names = " and ".join(map(cluster.with_address, missing[:_MOST_NAMED]))
            raise TaskLost(names, problem, remedy=remedy) from error
        time.sleep(_SECONDS_BETWEEN_LOOKS)


def _by_tls(options: CommunicationOptions) -> str:
    return ", encrypted by TLS" if options.is_encrypted else ""


def _leave_to_tensorflow(error: ConnectError, options: CommunicationOptions, instead: str, name: str) -> None:
    """Log that TensorFlow sends the tensors; raise ConfigError if the user asked for tcp."""
    if options.needs_tcp:
        remedy = "Give all tasks the same secret and let them reach each other on any port"
        problem = f"cannot connect the tasks: {error}"
        raise ConfigError(options.tcp_wish, problem, remedy=remedy + _or_set(options, name)) from error
    _log.warning("%s: %s", instead, error)


def _or_set(options: CommunicationOptions, name: str) -> str:
    """Return the end of a remedy, which names an exchange of TensorFlow's, unless it cannot do as asked."""
    return "" if options.is_encrypted else f", or set {name}"
