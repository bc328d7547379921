"""Define the options of `make_strategy`, and which strategies have them.

This module does not load TensorFlow, so commands start at once.
"""

from typing import Annotated, Any, Literal, TypedDict

import msgspec
from msgspec import Meta

from tfdist._utils.read_yaml_and_json import Document, Source, decode
from tfdist._utils.shared_config_types import AboveZero, NotNegative, Positive, doc
from tfdist.coordination.heartbeat_watch import SHORTEST_TIMEOUT
from tfdist.errors import ConfigError
from tfdist.strategies.strategy_names import OF_ONE_PROCESS, OF_PS

UNSET_BACKEND = "Unset KERAS_BACKEND, or set it to tensorflow; ~/.keras/keras.json may name another one too"
Device = Literal["auto", "cpu", "gpu"]
Implementation = Literal["auto", "tcp", "grpc", "ring", "nccl"]
WireType = Literal["float32", "bfloat16", "float16", "int8"]
Encryption = Literal["tls"]
Precision = Literal["float32", "float64", "mixed_float16", "mixed_bfloat16"]

_OF_CLUSTERS = ("multi_worker_mirrored", *OF_PS)
_OF_MIRRORED = (*OF_ONE_PROCESS, "multi_worker_mirrored")
# TensorFlow's own ways to communicate, under the strategies that have something to exchange.
_OF_TENSORFLOW = {
    "multi_worker_mirrored": ("ring", "nccl"),
    "parameter_server": ("grpc",),
    "parameter_server_sync": ("grpc",),
}


class Communication(TypedDict, total=False):
    """The way mirrored workers add gradients up, and tensors travel to parameter servers and back.

    Attributes:
        implementation: tcp uses connections of tfdist's own between tasks that share a secret
            (TFDIST_SECRET). TensorFlow's are ring and nccl between mirrored workers, and grpc to parameter
            servers. auto takes tcp on CPUs if there is a secret and bytes_per_pack is not set; otherwise
            TensorFlow chooses.
        dtype: The type in which tcp sends 32-bit numbers. bfloat16, float16 and int8 round them, which
            changes the result; float32, the default, does not. It needs implementation tcp, or encryption.
        bytes_per_pack: How many bytes of gradients TensorFlow sends together; 0 means all.
        timeout: Seconds after which an exchange fails if a task is missing.
        encryption: tls encrypts and authenticates what tcp sends; it implies tcp. It needs the package
            cryptography on all tasks: pip install 'tfdist[tls]'.
    """

    implementation: Implementation
    dtype: WireType
    bytes_per_pack: int
    timeout: float
    encryption: Encryption


class CommunicationOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Select how tensors travel between mirrored workers, and to parameter servers and back."""

    implementation: Annotated[
        Implementation | None,
        doc(
            "tcp uses tfdist's own connections; TensorFlow's are ring and nccl, and grpc with"
            " parameter servers. auto selects tcp on CPUs if the tasks share a secret."
        ),
    ] = None
    dtype: Annotated[
        WireType | None,
        doc(
            "The type in which tcp sends 32-bit numbers; all types but float32 round them, which"
            " changes the result. Needs implementation tcp, or encryption tls."
        ),
    ] = None
    bytes_per_pack: Annotated[
        NotNegative | None,
        doc("Bytes of gradients that TensorFlow sends together; 0 means all."),
    ] = None
    timeout: Annotated[
        AboveZero | None, doc("Seconds after which an exchange fails if a task is missing.")
    ] = None
    encryption: Annotated[
        Encryption | None,
        doc("tls encrypts what tcp sends, and implies tcp; it needs pip install 'tfdist[tls]' on all tasks."),
    ] = None

    @property
    def needs_tcp(self) -> bool:
        """Return whether the user requires tcp."""
        return self.implementation == "tcp" or self.is_encrypted

    @property
    def is_encrypted(self) -> bool:
        """Return whether all that tfdist's own connections carry is encrypted."""
        return self.encryption == "tls"

    @property
    def is_auto(self) -> bool:
        """Return whether tfdist chooses."""
        return self.wanted == "auto"

    @property
    def wanted(self) -> Implementation:
        """Return the implementation, which is auto by default."""
        return self.implementation or "auto"

    @property
    def tcp_wish(self) -> str:
        """Return what requires tcp, as in a config."""
        return f"communication.{'encryption tls' if self.is_encrypted else 'implementation tcp'}"

    def may_use_tcp(self, *, on_gpus: bool) -> bool:
        """Return whether tensors use tfdist's own connections, provided that the tasks share a secret."""
        return self.needs_tcp or (self.is_auto and not on_gpus and self.bytes_per_pack is None)


class ProcessOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options that both `make_strategy` and the section `strategy` of a config have."""

    device: Annotated[
        Device,
        doc("The device to compute on. auto uses GPUs if there are any; gpu fails without one."),
    ] = "auto"
    logical_devices: Annotated[
        Positive | None,
        doc("Without a GPU, split this machine's CPU into so many devices, to try strategies that mirror."),
    ] = None
    precision: Annotated[Precision | None, doc("Keras's dtype policy.")] = None
    min_shard_bytes: Annotated[
        Positive | None,
        doc("Split a variable over the ps into shards of at least this size."),
    ] = None
    max_shards: Annotated[Positive | None, doc("Split a variable over at most so many ps.")] = None
    memory_growth: Annotated[bool | None, doc("Allocate GPU memory as it is needed.")] = None
    start_timeout: Annotated[
        AboveZero | None,
        doc("Seconds to wait at the start for the other tasks; 600 by default."),
    ] = None


class StrategyOptions(ProcessOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of `make_strategy`; None for one that is not set."""

    communication: CommunicationOptions = CommunicationOptions()
    heartbeat_timeout: Annotated[float, Meta(ge=SHORTEST_TIMEOUT)] | None = None
    intra_op_threads: NotNegative | None = None
    inter_op_threads: NotNegative | None = None

    @classmethod
    def of(cls, **given: Any) -> "StrategyOptions":
        """Return the options that a caller gives; raise ConfigError for an unknown key or a wrong value."""
        values = {key: value for key, value in given.items() if value is not None}
        return decode(Document(values, Source("make_strategy")), cls)

    def check(self, name: str) -> None:
        """Raise ConfigError for an option that has no effect under a strategy."""
        for key, strategies in _STRATEGIES_OF_OPTION.items():
            section, _, option = key.rpartition(".")
            value = getattr(self.communication if section else self, option)
            if value is not None and name not in strategies:
                remedy = f"Leave it out, or take {' or '.join(strategies)}"
                if key == "memory_growth":
                    remedy = "Pass it to tfdist.serve on the workers"
                raise ConfigError(key, f"has no effect with {name}", remedy=remedy)
        self._check_implementation(name)

    def _check_implementation(self, name: str) -> None:
        communication = self.communication
        implementation = communication.wanted
        if name in _OF_TENSORFLOW:
            known = "auto", "tcp", *_OF_TENSORFLOW[name]
            if implementation not in known:
                where, remedy = f"communication.implementation {implementation}", f"Set {' or '.join(known)}"
                raise ConfigError(where, f"is not supported with {name}", remedy=remedy)
        if communication.is_encrypted and implementation not in ("auto", "tcp"):
            problem = f"needs implementation tcp, but the implementation is {implementation}"
            raise ConfigError("communication.encryption tls", problem, remedy="Set tcp, or leave one out")
        if communication.dtype is not None and not communication.needs_tcp:
            problem = f"needs implementation tcp, but the implementation is {implementation}"
            raise ConfigError("communication.dtype", problem, remedy="Set tcp, or leave it out")
        if communication.needs_tcp and communication.bytes_per_pack is not None:
            how = "encryption tls, which implies tcp" if communication.is_encrypted else "tcp"
            raise ConfigError(
                "communication.bytes_per_pack", f"has no effect with {how}", remedy="Leave it out"
            )


_STRATEGIES_OF_OPTION = {
    "communication.implementation": _OF_CLUSTERS,
    "communication.dtype": _OF_CLUSTERS,
    "communication.bytes_per_pack": ("multi_worker_mirrored",),
    "communication.timeout": _OF_CLUSTERS,
    "communication.encryption": _OF_CLUSTERS,
    "heartbeat_timeout": ("multi_worker_mirrored",),
    "start_timeout": _OF_CLUSTERS,
    "min_shard_bytes": OF_PS,
    "max_shards": OF_PS,
    "logical_devices": _OF_MIRRORED,
    "memory_growth": _OF_MIRRORED,
}


def is_gpu_used(device: str, gpus: int) -> bool:
    """Return whether a process with so many GPUs computes on them."""
    return device != "cpu" and gpus > 0
