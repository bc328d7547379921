"""Settle how tensors go from task to task: over connections of their own, or by TensorFlow's."""

import logging
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfdist.cluster import ClusterConfig
from tfdist.devices import device_kind
from tfdist.errors import ConfigError
from tfdist.exchange import SECRET, SECRET_FILE, Unmet, find_secret
from tfdist.strategy.kinds import MultiWorkerMirrored, ParameterServer, SynchronousParameterServer
from tfdist.strategy.posting import Posting

__all__ = ["check_implementation", "collectives_of", "exchange_over_ring", "send_by_post", "shared_secret"]

_log = logging.getLogger("tfdist")

# What is TensorFlow's, under the strategies that have something to exchange.
_OWN = {
    "multi_worker_mirrored": ("ring", "nccl"),
    "parameter_server": ("grpc",),
    "parameter_server_sync": ("grpc",),
}


def collectives_of(options: Mapping[str, Any]) -> tf.distribute.experimental.CommunicationOptions:
    """Give what TensorFlow's collectives are to do, which is all where there is no ring.

    Not its `timeout_seconds`: see TimeLimit.
    """
    implementations = tf.distribute.experimental.CommunicationImplementation
    implementation = options["communication.implementation"] or "auto"
    return tf.distribute.experimental.CommunicationOptions(
        bytes_per_pack=options["communication.bytes_per_pack"] or 0,
        implementation=implementations["AUTO" if implementation == "tcp" else implementation.upper()],
    )


def check_implementation(name: str, implementation: str) -> None:
    """Refuse a way of communicating that the strategy does not know."""
    known = "auto", "tcp", *_OWN[name]
    if implementation not in known:
        problem = f"does nothing under {name}"
        remedy = f"Say {' or '.join(known)}"
        raise ConfigError(f"communication.implementation {implementation}", problem, remedy=remedy)


def shared_secret(cluster: ClusterConfig, name: str, options: Mapping[str, Any]) -> bytes | None:
    """Give what the tasks know each other by, where tensors are to go over connections of their own."""
    if name not in _OWN:  # one process, which may be the evaluator of a cluster that does
        return None
    implementation = options["communication.implementation"] or "auto"
    bytes_per_pack = options["communication.bytes_per_pack"]
    own = _OWN[name]
    if options["communication.dtype"] is not None and implementation != "tcp":
        problem = f"is about the exchange of implementation tcp, and the implementation is {implementation}"
        raise ConfigError("communication.dtype", problem, remedy="Say tcp, or leave it out")
    if implementation in own or len(cluster.training().tasks()) < 2:
        return None
    secret = find_secret()
    if implementation == "tcp" and secret is None:
        problem = "needs a secret that the tasks know each other by; the launcher would hand one out"
        remedy = f"Set {SECRET} or {SECRET_FILE} to the same one for all tasks, or say {own[0]}"
        raise ConfigError("communication.implementation tcp", problem, remedy=remedy)
    if implementation == "tcp" and bytes_per_pack is not None:
        raise ConfigError("communication.bytes_per_pack", "does nothing with tcp", remedy="Leave it out")
    if implementation == "auto" and (device_kind() == "GPU" or bytes_per_pack is not None):
        return None
    return secret


def exchange_over_ring(
    strategy: MultiWorkerMirrored, cluster: ClusterConfig, secret: bytes, options: Mapping[str, Any]
) -> None:
    """Let gradients go over a ring; where the tasks cannot meet in one, say so, and go on if that may be."""
    try:
        wire_type = options["communication.dtype"] or "float32"
        strategy.exchange_over_ring(
            cluster,
            secret,
            wire_type=wire_type,
            # Who asks for TCP wants the bytes on the wire, on one machine too.
            may_share=options["communication.implementation"] != "tcp",
        )
    except Unmet as error:
        _leave_to_tensorflow(
            error, options, "gradients go by TensorFlow's own collectives, which are slower", "ring"
        )
    else:
        _log.info("gradients go over a ring of %d tasks", len(cluster.training().tasks()))


def send_by_post(
    strategy: ParameterServer | SynchronousParameterServer,
    cluster: ClusterConfig,
    device: str,
    options: Mapping[str, Any],
) -> None:
    """Let tensors cross by the post; where tasks cannot meet, say so, and go on without it if that may be."""
    is_said = options["communication.implementation"] == "tcp"
    has_gpus = any("/job:worker/" in each.name for each in tf.config.list_logical_devices("GPU"))
    if has_gpus and device != "cpu" and not is_said:
        return
    if strategy.num_replicas_in_sync > 1 and isinstance(strategy, ParameterServer):
        problem = "is for workers that compute on one device each"
        raise ConfigError("communication.implementation tcp", problem, remedy="Say grpc, or device cpu")
    try:
        strategy.post = Posting(
            cluster.training(),
            wire_type=options["communication.dtype"] or "float32",
            is_in_step=isinstance(strategy, SynchronousParameterServer),
            timeout=options["communication.timeout"],
            is_asked_for=is_said,
        )
    except Unmet as error:
        _leave_to_tensorflow(
            error, options, "variables and gradients go by TensorFlow's gRPC, which is slower", "grpc"
        )
    else:
        _log.info("variables and gradients go by the post")


def _leave_to_tensorflow(error: Unmet, options: Mapping[str, Any], instead: str, name: str) -> None:
    """Say that tensors go another way, or refuse to where tcp was asked for."""
    if options["communication.implementation"] == "tcp":
        remedy = f"Give all tasks the same secret and let them reach each other on any port, or say {name}"
        raise ConfigError("communication.implementation tcp", f"cannot be: {error}", remedy=remedy) from error
    _log.warning("%s: %s", instead, error)
