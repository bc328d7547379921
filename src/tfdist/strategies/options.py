"""Define the options of `make_strategy`: which strategies have them, and what `auto` stands for.

This module does not load TensorFlow, so commands start at once.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypedDict, get_args

from tfdist.cluster.config import ClusterConfig
from tfdist.errors import ConfigError, did_you_mean, shown

StrategyName = Literal[
    "auto", "one_device", "mirrored", "multi_worker_mirrored", "parameter_server", "parameter_server_sync"
]
Device = Literal["auto", "cpu", "gpu"]
Implementation = Literal["auto", "tcp", "grpc", "ring", "nccl"]
WireType = Literal["float32", "bfloat16", "float16", "int8"]
Encryption = Literal["tls"]
Precision = Literal["float32", "float64", "mixed_float16", "mixed_bfloat16"]

OF_PS = ("parameter_server", "parameter_server_sync")
_OF_CLUSTERS = ("multi_worker_mirrored", *OF_PS)
_OF_MIRRORED = ("one_device", "mirrored", "multi_worker_mirrored")
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
            changes the result; float32, the default, does not.
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


@dataclass(frozen=True)
class CommunicationOptions:
    """The values of a `Communication`; None for a key that is not set."""

    implementation: Implementation | None = None
    dtype: WireType | None = None
    bytes_per_pack: int | None = None
    timeout: float | None = None
    encryption: Encryption | None = None

    @classmethod
    def of(cls, communication: Mapping[str, Any] | None) -> "CommunicationOptions":
        """Return the options in a mapping; raise ConfigError for something else, and for an unknown key."""
        if communication is not None and not isinstance(communication, Mapping):
            expected, received = 'a dict such as {"implementation": "tcp"}', shown(communication)
            raise ConfigError("communication", expected=expected, received=received)
        known = [option.name for option in fields(cls)]
        for key in communication or {}:
            if key not in known:
                remedy = did_you_mean(key, known)
                raise ConfigError("communication", f"unknown key {shown(key)}", remedy=remedy)
        return cls(**(communication or {}))

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


@dataclass(frozen=True)
class StrategyOptions:
    """The options of `make_strategy`; None for one that is not set."""

    communication: CommunicationOptions = field(default_factory=CommunicationOptions)
    device: Device = "auto"
    min_shard_bytes: int | None = None
    max_shards: int | None = None
    logical_devices: int | None = None
    memory_growth: bool | None = None
    precision: Precision | None = None
    intra_op_threads: int | None = None
    inter_op_threads: int | None = None
    start_timeout: float | None = None

    def check(self, name: str) -> None:
        """Check that each option has an effect under a strategy, and that its value is valid.

        Raises:
            ConfigError: An option has no effect, or its value is invalid.
        """
        for key, value in self._given():
            rule = _RULES[key]
            if name not in rule.strategies:
                remedy = f"Leave it out, or take {' or '.join(rule.strategies)}"
                if key == "memory_growth":
                    remedy = "Pass it to tfdist.serve on the workers"
                raise ConfigError(key, f"has no effect with {name}", remedy=remedy)
            rule.check(key, value)
        self._check_implementation(name)

    def _given(self) -> Iterator[tuple[str, Any]]:
        """Yield each option that the user has given, by its name in a config."""
        for option in fields(self.communication):
            if (value := getattr(self.communication, option.name)) is not None:
                yield f"communication.{option.name}", value
        for option in fields(self):
            if option.name in _RULES and (value := getattr(self, option.name)) is not None:
                yield option.name, value

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


@dataclass(frozen=True)
class _Rule:
    """The strategies that have an option, and its valid values.

    Attributes:
        strategies: The strategies under which the option has an effect.
        words: The valid words; empty for a number.
        least: The smallest valid number; None if this rule does not check the value.
        is_float: Whether the number may have a fraction.
    """

    strategies: tuple[str, ...] = (*_OF_MIRRORED, *OF_PS)
    words: tuple[str, ...] = ()
    least: int | None = 1
    is_float: bool = False

    def check(self, key: str, value: object) -> None:
        """Raise ConfigError for an invalid value."""
        if self.words:
            if value not in self.words:
                raise ConfigError(
                    key, "is unknown: " + shown(value), remedy=did_you_mean(str(value), self.words)
                )
        elif self.least is not None:
            is_number = isinstance(value, int) or (self.is_float and isinstance(value, float))
            least = 0 if isinstance(value, float) else self.least
            if isinstance(value, bool) or not is_number or value < least:  # type: ignore[operator]
                expected = f"a number of at least {self.least}"
                raise ConfigError(key, expected=expected, received=shown(value))


_RULES = {
    "communication.implementation": _Rule(_OF_CLUSTERS, get_args(Implementation)),
    "communication.dtype": _Rule(_OF_CLUSTERS, get_args(WireType)),
    "communication.bytes_per_pack": _Rule(("multi_worker_mirrored",), least=0),
    "communication.timeout": _Rule(_OF_CLUSTERS, is_float=True),
    "communication.encryption": _Rule(_OF_CLUSTERS, get_args(Encryption)),
    "start_timeout": _Rule(_OF_CLUSTERS, is_float=True),
    "min_shard_bytes": _Rule(OF_PS),
    "max_shards": _Rule(OF_PS),
    "logical_devices": _Rule(_OF_MIRRORED),
    "memory_growth": _Rule(_OF_MIRRORED, least=None),
    "precision": _Rule(words=get_args(Precision)),
    "intra_op_threads": _Rule(least=0),
    "inter_op_threads": _Rule(least=0),
}


def is_gpu_used(device: str, gpus: int) -> bool:
    """Return whether a process with so many GPUs computes on them."""
    return device != "cpu" and gpus > 0


def strategy_name(strategy: str, cluster: ClusterConfig, *, devices: int = 1) -> StrategyName:
    """Return the name of a strategy; for auto, of the one that fits the cluster, or so many devices."""
    if strategy not in get_args(StrategyName):
        remedy = did_you_mean(strategy, get_args(StrategyName))
        raise ConfigError("strategy", "is unknown: " + shown(strategy), remedy=remedy)
    if strategy != "auto":
        return strategy  # type: ignore[return-value]
    return choose_strategy(cluster, devices=devices)[0]


def roles_started_alone(strategy: StrategyName) -> tuple[str, ...]:
    """Return the roles whose lost tasks are started again while the others continue."""
    return ("worker", "evaluator") if strategy == "parameter_server" else ("evaluator",)


def choose_strategy(cluster: ClusterConfig, *, devices: int) -> tuple[StrategyName, str]:
    """Return the strategy that fits a cluster and its devices, and the reason."""
    training = ClusterConfig() if cluster.is_evaluator else cluster
    workers = training.size("chief") + training.size("worker")
    if training.size("ps"):
        return "parameter_server", f"the cluster has {training.size('ps')} ps"
    if workers > 1:
        return "multi_worker_mirrored", f"the cluster has {workers} workers and no ps"
    if devices > 1:
        return "mirrored", f"one process with {devices} devices"
    return "one_device", "one process with one device"
