"""The sections `strategy` and `communication`: how the tasks share the work."""

from typing import Annotated, Any

import msgspec

from tfdist.strategies.options import (
    CommunicationOptions,
    Device,
    Encryption,
    Implementation,
    Precision,
    StrategyName,
    WireType,
)
from tfdist.trainer.sections.values import AboveZero, NotNegative, Positive, doc


class StrategySection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Select the strategy, that is how the tasks share the work, and its devices."""

    name: Annotated[StrategyName, doc("auto selects the one that fits the cluster and the devices.")] = "auto"
    device: Annotated[
        Device, doc("The device to compute on. auto uses GPUs if there are any; gpu fails without one.")
    ] = "auto"
    logical_devices: Annotated[
        Positive | None, doc("Split this machine's CPU into so many devices, to try mirrored.")
    ] = None
    precision: Annotated[Precision | None, doc("Keras's dtype policy.")] = None
    min_shard_bytes: Annotated[
        Positive | None, doc("Split a variable over the ps into shards of at least this size.")
    ] = None
    max_shards: Annotated[Positive | None, doc("Split a variable over at most so many ps.")] = None
    memory_growth: Annotated[bool | None, doc("Allocate GPU memory as it is needed.")] = None
    start_timeout: Annotated[
        AboveZero | None, doc("Seconds to wait at the start for the other tasks; 600 by default.")
    ] = None

    def serving(self) -> dict[str, Any]:
        """Return the arguments of `serve`, except the cluster."""
        timeout = {} if self.start_timeout is None else {"start_timeout": self.start_timeout}
        return {"device": self.device, "memory_growth": self.memory_growth, **timeout}


class CommunicationSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Select how tensors travel between mirrored workers, and to parameter servers and back."""

    implementation: Annotated[
        Implementation | None,
        doc(
            "tcp uses tfdist's own connections; TensorFlow's are ring and nccl, and grpc with parameter"
            " servers. auto selects tcp on CPUs if the tasks share a secret."
        ),
    ] = None
    dtype: Annotated[
        WireType | None,
        doc(
            "The type in which tcp sends 32-bit numbers; all types but float32 round them, which changes the"
            " result."
        ),
    ] = None
    bytes_per_pack: Annotated[
        NotNegative | None, doc("Bytes of gradients that TensorFlow sends together; 0 means all.")
    ] = None
    timeout: Annotated[
        AboveZero | None, doc("Seconds after which an exchange fails if a task is missing.")
    ] = None
    encryption: Annotated[
        Encryption | None,
        doc("tls encrypts what tcp sends, and implies tcp; it needs pip install 'tfdist[tls]' on all tasks."),
    ] = None

    @property
    def options(self) -> CommunicationOptions:
        """Return what strategies read."""
        return CommunicationOptions(**msgspec.structs.asdict(self))
