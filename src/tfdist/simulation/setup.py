"""Define the input of the simulation: what is computed, what is exchanged, and over which links.

The classes below are the sections of its YAML file. Units are seconds and bytes.
"""

from os import PathLike
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from tfdist._utils.read_yaml_and_json import decode, read_yaml_file
from tfdist._utils.shared_config_types import doc
from tfdist.errors import ConfigError

# Far beyond what there is, and far from what a float64 overflows at.
_MOST = 10**15
NotNegative = Annotated[float, Meta(ge=0, le=_MOST)]
AboveZero = Annotated[float, Meta(gt=0, le=_MOST)]
Share = Annotated[float, Meta(ge=0, le=1)]
Count = Annotated[int, Meta(ge=1, le=10_000)]

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}


class Compute(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The time that a worker computes for a step."""

    seconds_per_example: Annotated[AboveZero, doc("Forward and backward, of one worker alone.")]
    batch_size: Annotated[Count, doc("Examples of one worker's step.")]
    forward: Annotated[Share, doc("The forward pass's share of the time.")] = 1 / 3
    spread: Annotated[
        float, doc("The standard deviation of a step's time, as a share of it (lognormal).", ge=0, le=100)
    ] = 0.03
    slow_share: Annotated[Share, doc("The share of steps that straggle besides.")] = 0.0
    slow_factor: Annotated[float, doc("How much longer those take.", ge=1, le=_MOST)] = 1.0


class Exchange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The data that a step exchanges; bytes are those of float32, whatever the dtype on the wire."""

    dense_bytes: Annotated[NotNegative, doc("Variables that each step reads and updates whole.")]
    sparse_bytes: Annotated[
        NotNegative, doc("Of large variables, the rows that a step reads and updates.")
    ] = 0.0
    dtype: Annotated[Literal["float32", "bfloat16", "float16", "int8"], doc("Of what is on the wire.")] = (
        "float32"
    )
    overlap: Annotated[
        bool, doc("Whether gradients leave while others are computed, and layers wait for their own.")
    ] = True
    bucket_bytes: Annotated[AboveZero, doc("Gradients that mirrored workers exchange together.")] = 64e6


class Network(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The link of a task, in each direction."""

    bytes_per_second: Annotated[float, Meta(ge=1, le=_MOST)]
    latency: Annotated[NotNegative, doc("Seconds from one task to another.")] = 50e-6


class Servers(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The ps tasks, which store the variables, and the chief, which gives out the steps."""

    count: Annotated[Count, doc("How many ps tasks; variables are spread evenly.")] = 1
    seconds_per_byte: Annotated[
        NotNegative, doc("How long a ps takes to add a byte of gradients to its variables.")
    ] = 0.0
    seconds_per_step: Annotated[
        NotNegative, doc("What all ps together take for one worker's step, besides.")
    ] = 0.0
    chief_seconds: Annotated[
        NotNegative, doc("How long the chief takes to give out a step, one after the other.")
    ] = 0.0


class Machine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One machine for all tasks, each bound to a core, which it may share with others."""

    cores: Count
    beside: Annotated[
        NotNegative, doc("Seconds for which a worker works on when its gradients have gone.")
    ] = 0.0

    def core_of(self, job: str, index: int = 0) -> int:
        """Return the core of a task: workers from the first core on, ps tasks and the chief from the last."""
        return (index if job == "worker" else -1 - index) % self.cores


class Setup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The input of the simulation, except the number of workers."""

    strategy: Literal["parameter_server", "parameter_server_sync", "multi_worker_mirrored"]
    compute: Compute
    exchange: Exchange
    network: Network
    servers: Servers = Servers()
    machine: Machine | None = None

    @property
    def step_seconds(self) -> float:
        """Return the mean time of a step of one process alone."""
        slowed = 1 + self.compute.slow_share * (self.compute.slow_factor - 1)
        return self.compute.seconds_per_example * self.compute.batch_size * slowed

    @property
    def wire_bytes(self) -> float:
        """Return the bytes that a worker sends to ps tasks in a step, and receives."""
        return (self.exchange.dense_bytes + self.exchange.sparse_bytes) * BYTES[self.exchange.dtype] / 4


def read_setup(path: str | PathLike[str]) -> Setup:
    """Read a setup from a YAML file; an unknown key, or a config of a training, is an error."""
    document = read_yaml_file(path)
    if isinstance(document.value, dict) and document.value.keys() & {"cluster", "data", "model", "train"}:
        problem = "is a config of tfdist train, but a simulation reads how fast workers and links are"
        raise ConfigError(str(path), problem, remedy="tfdist simulate --example prints such a file")
    return decode(document, Setup)
