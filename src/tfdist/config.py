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

__all__ = ["Config", "ElasticSection", "Settings", "json_schema", "read_config"]

Strategy = Literal[
    "auto", "one_device", "mirrored", "multi_worker_mirrored", "parameter_server", "parameter_server_sync"
]
Positive = Annotated[int, Meta(ge=1)]


class StrategySection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Say how the tasks share the work."""

    name: Annotated[Strategy, Meta(description="auto takes one that fits the cluster and the devices.")] = (
        "auto"
    )
    device: Annotated[
        Literal["auto", "cpu", "gpu"],
        Meta(description="What is computed on. gpu fails where there is none; auto takes GPUs if there are."),
    ] = "auto"
    logical_devices: Annotated[
        Positive | None, Meta(description="Make so many devices of this machine's CPU, to try mirrored out.")
    ] = None
    precision: Annotated[
        Literal["float32", "float64", "mixed_float16", "mixed_bfloat16"] | None,
        Meta(description="Keras's dtype policy."),
    ] = None
    min_shard_bytes: Annotated[
        Positive | None, Meta(description="Split a variable over the ps into shards of at least this size.")
    ] = None
    max_shards: Annotated[Positive | None, Meta(description="Split a variable over so many ps at most.")] = (
        None
    )
    memory_growth: Annotated[bool | None, Meta(description="Take GPU memory as it is needed.")] = None
    start_timeout: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(description="Seconds that the other tasks may take to come up; else 600."),
    ] = None

    def serving(self) -> dict[str, Any]:
        """Give what `serve` is to be called with, besides the cluster."""
        timeout = {} if self.start_timeout is None else {"start_timeout": self.start_timeout}
        return {"device": self.device, "memory_growth": self.memory_growth, **timeout}


class CommunicationSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Say how mirrored workers add gradients up, and how tensors cross to parameter servers and back."""

    implementation: Annotated[
        Literal["auto", "tcp", "grpc", "ring", "nccl"] | None,
        Meta(
            description="tcp goes over connections of tfdist's own; TensorFlow's are ring and nccl, and grpc"
            " with parameter servers. auto takes tcp on CPUs, where the tasks share a secret."
        ),
    ] = None
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16", "int8"] | None,
        Meta(
            description="What numbers of 32 bits travel as with tcp; all but float32 round them, which"
            " changes what is computed."
        ),
    ] = None
    bytes_per_pack: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="Bytes of gradients that TensorFlow sends together; 0 is all."),
    ] = None
    timeout: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(description="Seconds after which an exchange that lacks a task fails."),
    ] = None


class DataSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Say what is trained on."""

    name: Annotated[
        str,
        Meta(
            description="mnist, cifar10 or another image set of tensorflow-datasets; digits or shapes; or a"
            " path, with a slash, to a folder of images by class, an .npz file or a folder of TFRecord files."
        ),
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
    augment: Annotated[
        Literal["none", "shift", "shift_flip", "crop_flip", "cifar10_2016"],
        Meta(description="How training images are altered at random."),
    ] = "none"
    image_size: Annotated[
        tuple[Positive, Positive] | None,
        Meta(description="Height and width to resize to; else all images must be of one size."),
    ] = None

    def wanted(self) -> dict[str, Any]:
        """Give what `open_data` is to be called with."""
        return {
            "name": self.name,
            "data_dir": self.dir,
            "if_unavailable": self.if_unavailable,
            "image_size": self.image_size,
        }


class ModelSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Say which model is trained."""

    name: Annotated[
        str, Meta(description="mnist_cnn, cifar10_cnn, resnet, fast_resnet, or my_package.my_module:build.")
    ] = "mnist_cnn"
    options: Annotated[
        dict[str, bool | int | float | str],
        Meta(description="Arguments for the function that builds it, such as {dropout: 0.4}."),
    ] = {}


class TrainSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Say how long and how it is trained."""

    epochs: Annotated[Positive, Meta(description="How many times all training examples are seen.")] = 1
    steps: Annotated[
        Positive | None, Meta(description="Train for just so many steps, whatever epochs says.")
    ] = None
    until_accuracy: Annotated[
        Annotated[float, Meta(gt=0, le=1)] | None,
        Meta(description="End with the first evaluation that finds so much test accuracy, such as 0.99."),
    ] = None
    optimizer: Literal["sgd", "momentum", "nesterov", "adam"] = "adam"
    learning_rate: Annotated[float, Meta(gt=0)] = 1e-3
    schedule: Annotated[
        Literal["constant", "cosine"],
        Meta(description="What becomes of the learning rate; cosine lets it fall to 0 over the run."),
    ] = "constant"
    warmup: Annotated[
        float, Meta(ge=0, lt=1, description="For which part of the run the learning rate rises to its value.")
    ] = 0.0
    steps_per_execution: Annotated[Positive, Meta(description="Steps in one call of the graph.")] = 1
    jit_compile: Annotated[
        bool | None,
        Meta(description="Let XLA compile what each replica computes; without, as Keras chooses."),
    ] = None
    seed: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    nonfinite: Annotated[
        Literal["stop", "skip"],
        Meta(
            description="What a loss that is NaN or infinite leads to: the end, or going on from the last"
            " checkpoint without the batch of that step."
        ),
    ] = "stop"


class EvaluationSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Say when the model is evaluated on the test data, besides at the end."""

    every: Annotated[Positive | None, Meta(description="Steps from one to the next; else an epoch's.")] = None
    batches: Annotated[
        Positive | None, Meta(description="Only so many batches of the test data; else all of them.")
    ] = None


class CheckpointSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Say when what a run needs to go on is saved, besides at the end."""

    every: Annotated[Positive | None, Meta(description="Steps from one to the next; else an epoch's.")] = None
    keep: Annotated[
        Positive, Meta(description="How many of the newest are kept; the best one is kept besides.")
    ] = 3
    resume: Annotated[
        Literal["auto", "never"],
        Meta(description="auto goes on from the newest checkpoint in the run's folder; never refuses one."),
    ] = "auto"


class SummariesSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Say what TensorBoard gets to show."""

    every: Annotated[Positive, Meta(description="Steps from one point of the curves to the next.")] = 50


class ExportSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Say in which forms the trained model is written, besides the SavedModel."""

    formats: Annotated[
        tuple[Literal["keras", "tflite"], ...], Meta(description="More forms to write it in.")
    ] = ()


class WatchSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Say when a task of the cluster counts as lost."""

    silence: Annotated[
        float,
        Meta(ge=5, description="Seconds without an answer: a task that is stopped, or whose link is cut."),
    ] = 30.0


class LaunchSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Say how a cluster on this machine is started."""

    threads: Annotated[
        Positive | None, Meta(description="Threads of each task; else the cores are shared out.")
    ] = None
    pin: Annotated[bool, Meta(description="Bind each task that computes to cores of its own.")] = False
    restarts: Annotated[
        int,
        Meta(
            ge=0,
            description="How often, in all, lost tasks are started again: an evaluator and a worker of"
            " asynchronous updates alone, others with the whole cluster, from the last checkpoint.",
        ),
    ] = 3
    isolate: Annotated[
        Literal["auto", "always", "never"],
        Meta(description="Whether the tasks live in a private network: if it can be had, always, or never."),
    ] = "auto"


class ElasticSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Let training go on with fewer workers than the cluster has, and take others in when they come."""

    min_workers: Annotated[Positive, Meta(description="How many workers there must be at least.")] = 1
    wait: Annotated[
        Annotated[float, Meta(gt=0)], Meta(description="Seconds that all of them are waited for at a start.")
    ] = 60.0


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hold a whole config file."""

    cluster: ClusterSection = ClusterSection()
    strategy: StrategySection = StrategySection()
    communication: CommunicationSection = CommunicationSection()
    data: DataSection = DataSection()
    model: ModelSection = ModelSection()
    train: TrainSection = TrainSection()
    evaluation: EvaluationSection = EvaluationSection()
    checkpoint: CheckpointSection = CheckpointSection()
    summaries: SummariesSection = SummariesSection()
    export: ExportSection = ExportSection()
    watch: WatchSection = WatchSection()
    launch: LaunchSection = LaunchSection()
    elastic: ElasticSection | None = None

    def strategy_options(self, cluster: ClusterConfig) -> dict[str, Any]:
        """Give what `make_strategy` is to be called with, besides the cluster."""
        communication = _said(self.communication)
        said = {**_said(self.strategy), **({"communication": communication} if communication else {})}
        if cluster.ps:  # beside ps tasks, GPUs are the workers' own
            said.pop("memory_growth", None)
        return {"strategy": said.pop("name"), **said}


def _said(section: msgspec.Struct) -> dict[str, Any]:
    return {key: value for key, value in msgspec.structs.asdict(section).items() if value is not None}


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

    def check_evaluator(self) -> None:
        """Refuse an evaluator of its own where the tasks that train have to know what it finds."""
        if self.config.train.until_accuracy is not None and self.config.cluster.evaluator:
            place = self.document.source.inside("train").at("until_accuracy")
            problem = "cannot be beside an evaluator, whose findings come when training has gone on"
            raise ConfigError(place, problem, remedy="Leave one of the two out")

    def check_elastic(self, cluster: ClusterConfig) -> None:
        """Refuse to be elastic where that cannot be."""
        section, config, source = self.config.elastic, self.config, self.document.source.inside("elastic")
        if section is None:
            return
        fitting = ("parameter_server_sync",) if cluster.ps else ("auto", "multi_worker_mirrored")
        if config.strategy.name not in fitting or not cluster:
            problem = "is for clusters of multi_worker_mirrored or parameter_server_sync"
            remedy = "Leave it out: asynchronous workers come and go without it"
            raise ConfigError(source.at(), problem, remedy=remedy)
        if section.min_workers > cluster.size("worker"):
            expected, received = f"at most {cluster.size('worker')} workers", str(section.min_workers)
            raise ConfigError(source.at("min_workers"), expected=expected, received=received)
        if config.checkpoint.resume == "never":
            problem = "goes on from checkpoints, but checkpoint.resume is never"
            raise ConfigError(source.at(), problem, remedy="Say auto, or leave it out")

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
