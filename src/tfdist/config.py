"""Hold everything that a config file can say, and read it strictly.

The classes below are the file's sections, and their docstrings and descriptions its reference: the JSON
Schema that editors complete and check the file with is made from them.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tfdist.cluster import ClusterConfig, ClusterSection, Task
from tfdist.documents import Document, decode, read_yaml, read_yaml_file
from tfdist.errors import ConfigError, shown

__all__ = ["Config", "Settings", "json_schema", "read_config"]

Strategy = Literal[
    "auto", "one_device", "mirrored", "multi_worker_mirrored", "parameter_server", "parameter_server_sync"
]
Positive = Annotated[int, Meta(ge=1)]


class StrategySection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Say how the tasks share the work."""

    name: Annotated[Strategy, Meta(description="auto takes one that fits the cluster and the devices.")] = (
        "auto"
    )
    logical_devices: Annotated[
        Positive | None, Meta(description="Make so many devices of this machine's CPU, to try mirrored out.")
    ] = None


class DataSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Say what is trained on."""

    name: Annotated[
        str,
        Meta(description="mnist, cifar10, another image set of tensorflow-datasets, digits or shapes."),
    ] = "mnist"
    dir: Annotated[
        str | None, Meta(description="Where tensorflow-datasets keeps its files; else TFDS_DATA_DIR.")
    ] = None
    if_unavailable: Annotated[
        Literal["fail", "digits", "shapes"],
        Meta(description="What to train on where the data cannot be had: drawn by tfdist, and said so."),
    ] = "fail"
    batch_size: Annotated[Positive, Meta(description="Examples of one step, over all workers together.")] = (
        128
    )

    def wanted(self) -> dict[str, Any]:
        """Give what `open_data` is to be called with."""
        return {"name": self.name, "data_dir": self.dir, "if_unavailable": self.if_unavailable}


class ModelSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Say which model is trained."""

    name: Annotated[
        str, Meta(description="mnist_cnn, cifar10_cnn, resnet, or my_package.my_module:build.")
    ] = "mnist_cnn"
    options: Annotated[
        dict[str, bool | int | float | str],
        Meta(description="Arguments for the function that builds it, such as {dropout: 0.4}."),
    ] = {}


class TrainSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Say how long and how it is trained."""

    epochs: Positive = 1
    steps_per_epoch: Annotated[
        Positive | None, Meta(description="Stop an epoch after so many steps; else it is all the data.")
    ] = None
    optimizer: Literal["sgd", "momentum", "adam"] = "adam"
    learning_rate: Annotated[float, Meta(gt=0)] = 1e-3
    steps_per_execution: Annotated[Positive, Meta(description="Steps in one call of the graph.")] = 1
    seed: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hold a whole config file."""

    cluster: ClusterSection = ClusterSection()
    strategy: StrategySection = StrategySection()
    data: DataSection = DataSection()
    model: ModelSection = ModelSection()
    train: TrainSection = TrainSection()


@dataclass(frozen=True)
class Settings:
    """Hold a config that has been read, and where each part of it stood."""

    config: Config
    document: Document
    path: str

    def command(self, task: Task | None = None) -> str:
        """Give what to type to start one task, or where none is named, the whole cluster on this machine."""
        words = ["python", "-m", "tfdist.train", "--config", self.path]
        return shlex.join(words if task is None else [*words, "--task", str(task)])

    def find_cluster(
        self, *, task: Task | str | None = None, environ: Mapping[str, str] | None = None
    ) -> ClusterConfig:
        """Give the cluster that the file and the environment describe together."""
        return ClusterConfig.from_section(self.document.part("cluster"), task=task, environ=environ)


def read_config(path: str | PathLike[str], changes: Sequence[str] = ()) -> Settings:
    """Read a config file, and refuse what it does not know.

    Args:
        path: The file.
        changes: Values to set in its place, such as `train.epochs=3`, written and checked as in the file.
    """
    document = read_yaml_file(path)
    for change in changes:
        document = _changed(document, change)
    return Settings(decode(document, Config), document, str(path))


def _changed(document: Document, change: str) -> Document:
    dotted, equals, text = change.partition("=")
    place = f"--set {change}"
    if not equals or not all(dotted.split(".")):
        raise ConfigError(place, expected="name.of.key=value", received=shown(change))
    value = read_yaml(f"value: {text}".encode("utf-8", "surrogateescape"), place).value
    if set(value) != {"value"}:
        raise ConfigError(place, expected="one value", received=str(len(value)))
    return document.with_value(dotted, value["value"], place)


def json_schema() -> dict[str, Any]:
    """Make the JSON Schema of the config file."""
    return msgspec.json.schema(Config)
