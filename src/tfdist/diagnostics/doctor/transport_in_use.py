"""Tell by which transport the tasks of a cluster exchange tensors, and why; and whether there is a secret."""

import os
from collections.abc import Iterator, Mapping

from tfdist.cluster.config import ClusterConfig
from tfdist.diagnostics.doctor.finding import CLUSTER, Finding, Findings, failure_of
from tfdist.errors import ConfigError
from tfdist.strategies.options import CommunicationOptions, is_gpu_used
from tfdist.strategies.strategy_names import StrategyName, exchanges_tensors, strategy_name
from tfdist.trainer.config import Config
from tfdist.transport.authentication import SECRET, SECRET_FILE, find_secret
from tfdist.transport.tls import check_tls

ANY_PORT = "on ports that the system chooses"  # in what is found about a transport that needs them

_MAKE_ONE = "python3 -c 'import secrets; print(secrets.token_hex(32))'"
_find = Findings(CLUSTER)


def check_transport(
    cluster: ClusterConfig, config: Config, *, gpus: int, environ: Mapping[str, str] = os.environ
) -> Iterator[Finding]:
    """Yield what is found about the secret, and about the transport that follows from it.

    Args:
        cluster: The cluster.
        config: What is said about strategy and communication; the defaults for a script.
        gpus: How many GPUs TensorFlow uses here.
        environ: The environment variables.
    """
    options = config.communication
    try:
        name = strategy_name(config.strategy.name, cluster)
        secret = find_secret(environ)
    except ConfigError as error:
        yield failure_of(CLUSTER, "secret", error)
        return
    if not exchanges_tensors(name, cluster):
        yield _find.ok("transport", f"none: with {name}, tensors stay in one process")
        return
    if not options.may_use_tcp(on_gpus=is_gpu_used(config.strategy.device, gpus)):
        yield _find.ok("transport", _of_tensorflow(name, options))
        return
    if cluster.is_on_ports_of_ours:
        by_tcp = [_find.ok("secret", "the launcher makes one at each start")]
        by_tcp.append(_find.ok("transport", _of_ours(name, options)))
    else:
        by_tcp = list(_with_secret(secret, name, options))
    if options.is_encrypted:
        try:
            check_tls()
        except ConfigError as error:
            yield failure_of(CLUSTER, "encryption", error)
            by_tcp = [finding for finding in by_tcp if finding.check != "transport"]  # there is none
    yield from by_tcp


def _with_secret(
    secret: bytes | None, name: StrategyName, options: CommunicationOptions
) -> Iterator[Finding]:
    if secret is not None:
        yield _find.ok("secret", "set, for this task")
        yield _find.ok("transport", _of_ours(name, options))
        return
    remedy = f"Set {SECRET} or {SECRET_FILE} to the same secret for all tasks: {_MAKE_ONE}"
    if options.needs_tcp:
        yield _find.failed("secret", f"none, but {options.tcp_wish} needs one", remedy)
        return
    found = "none, so tensors travel over TensorFlow's gRPC, which is slower than tfdist's own transport"
    yield _find.warning("secret", found, remedy)
    yield _find.ok("transport", f"{_tensorflow_by(name)}, because this task has no secret")


def _of_ours(name: StrategyName, options: CommunicationOptions) -> str:
    shape = "a ring" if name == "multi_worker_mirrored" else "from each worker to each ps"
    why = f"of {options.tcp_wish}" if options.needs_tcp else "the tasks compute on CPUs"
    wire = f", numbers sent as {options.dtype}" if options.dtype else ""
    tls = ", encrypted by TLS" if options.is_encrypted else ""
    return f"tfdist's own TCP connections, {shape}{wire}{tls}, because {why}; {ANY_PORT}"


def _of_tensorflow(name: StrategyName, options: CommunicationOptions) -> str:
    if not options.is_auto:
        how = f"TensorFlow's {options.implementation}"
        return f"{how}, because communication.implementation is {options.implementation}"
    why = "the tasks compute on GPUs"
    if options.bytes_per_pack is not None:
        why = "communication.bytes_per_pack is set"
    return f"{_tensorflow_by(name)}, because {why}"


def _tensorflow_by(name: StrategyName) -> str:
    is_ring = name == "multi_worker_mirrored"
    return "TensorFlow's collectives (gRPC, or NCCL on GPUs)" if is_ring else "TensorFlow's gRPC"
