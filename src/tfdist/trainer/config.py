"""Define the config file, and read it; an unknown key is an error.

The classes below are the sections of the file. Their docstrings and descriptions are its reference: they are
in the JSON Schema, with which editors complete and check the file.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tfdist._utils.yaml import Document, decode, read_yaml, read_yaml_file
from tfdist.cluster.config import ClusterConfig, ClusterSection, Task
from tfdist.coordination.stall_limit import SHORTEST_SECONDS
from tfdist.errors import ConfigError, shown
from tfdist.profiling.step_range import parse_steps
from tfdist.strategies.options import (
    CommunicationOptions,
    Device,
    Encryption,
    Implementation,
    Precision,
    StrategyName,
    WireType,
)
from tfdist.trainer.engine_sections import EngineSection
from tfdist.trainer.shipped_configs import shipped_configs

__all__ = [
    "Config",
    "ElasticSection",
    "Named",
    "Settings",
    "TrainSection",
    "json_schema",
    "name_and_arguments",
    "read_config",
]

Positive = Annotated[int, Meta(ge=1)]
# A name, or a mapping of a name and arguments: {name: adamw, weight_decay: 0.01}.
Named = str | Annotated[dict[str, Any], Meta(extra_json_schema={"required": ["name"]})]


class StrategySection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Select the strategy, that is how the tasks share the work, and its devices."""

    name: Annotated[
        StrategyName, Meta(description="auto selects the one that fits the cluster and the devices.")
    ] = "auto"
    device: Annotated[
        Device,
        Meta(description="The device to compute on. auto uses GPUs if there are any; gpu fails without one."),
    ] = "auto"
    logical_devices: Annotated[
        Positive | None, Meta(description="Split this machine's CPU into so many devices, to try mirrored.")
    ] = None
    precision: Annotated[
        Precision | None,
        Meta(description="Keras's dtype policy."),
    ] = None
    min_shard_bytes: Annotated[
        Positive | None, Meta(description="Split a variable over the ps into shards of at least this size.")
    ] = None
    max_shards: Annotated[Positive | None, Meta(description="Split a variable over at most so many ps.")] = (
        None
    )
    memory_growth: Annotated[bool | None, Meta(description="Allocate GPU memory as it is needed.")] = None
    start_timeout: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(description="Seconds to wait at the start for the other tasks; 600 by default."),
    ] = None

    def serving(self) -> dict[str, Any]:
        """Return the arguments of `serve`, except the cluster."""
        timeout = {} if self.start_timeout is None else {"start_timeout": self.start_timeout}
        return {"device": self.device, "memory_growth": self.memory_growth, **timeout}


class CommunicationSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Select how tensors travel between mirrored workers, and to parameter servers and back."""

    implementation: Annotated[
        Implementation | None,
        Meta(
            description="tcp uses tfdist's own connections; TensorFlow's are ring and nccl, and grpc"
            " with parameter servers. auto selects tcp on CPUs if the tasks share a secret."
        ),
    ] = None
    dtype: Annotated[
        WireType | None,
        Meta(
            description="The type in which tcp sends 32-bit numbers; all types but float32 round them, which"
            " changes the result."
        ),
    ] = None
    bytes_per_pack: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="Bytes of gradients that TensorFlow sends together; 0 means all."),
    ] = None
    timeout: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(description="Seconds after which an exchange fails if a task is missing."),
    ] = None
    encryption: Annotated[
        Encryption | None,
        Meta(
            description="tls encrypts what tcp sends, and implies tcp; it needs pip install 'tfdist[tls]' on"
            " all tasks."
        ),
    ] = None

    @property
    def options(self) -> CommunicationOptions:
        """Return what strategies read."""
        return CommunicationOptions(**msgspec.structs.asdict(self))


class DataSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Select the data set, and how it is read."""

    name: Annotated[
        str,
        Meta(
            description="mnist, cifar10 or another image set of tensorflow-datasets; digits or shapes; or a"
            " path to a folder of images by class, of TFRecord files or of idx files, or to an .npz file."
        ),
    ] = "mnist"
    dir: Annotated[
        str | None, Meta(description="The folder of tensorflow-datasets; TFDS_DATA_DIR by default.")
    ] = None
    if_unavailable: Annotated[
        Literal["fail", "digits", "shapes"],
        Meta(description="What follows if the data are unavailable: an error, or training on drawn images."),
    ] = "fail"
    one_hot: Annotated[
        bool | None,
        Meta(description="Whether labels are one-hot; by default, if Keras's loss compares with them."),
    ] = None
    batch_size: Annotated[Positive, Meta(description="Examples in one step, over all workers together.")] = (
        128
    )
    augment: Annotated[
        Literal["none", "shift", "shift_flip", "crop_flip", "cifar10_2016"],
        Meta(description="The random augmentation of training images."),
    ] = "none"
    image_size: Annotated[
        tuple[Positive, Positive] | None,
        Meta(description="Height and width to resize to; without it, all images must have one size."),
    ] = None

    def wanted(self) -> dict[str, Any]:
        """Return the arguments of `open_data`."""
        return {
            "name": self.name,
            "data_dir": self.dir,
            "if_unavailable": self.if_unavailable,
            "image_size": self.image_size,
        }


class ModelSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Select the model."""

    name: Annotated[
        str, Meta(description="mnist_cnn, cifar10_cnn, resnet, or my_package.my_module:build.")
    ] = "mnist_cnn"
    options: Annotated[
        dict[str, bool | int | float | str],
        Meta(description="Arguments for the function that builds the model, such as {dropout: 0.4}."),
    ] = {}


class TrainSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Set how the model is trained, and for how long."""

    epochs: Annotated[
        Positive, Meta(description="How many times the run goes through all training examples.")
    ] = 1
    steps: Annotated[Positive | None, Meta(description="Train for so many steps instead of for epochs.")] = (
        None
    )
    until_accuracy: Annotated[
        Annotated[float, Meta(gt=0, le=1)] | None,
        Meta(description="End after the first evaluation with at least this test accuracy, such as 0.99."),
    ] = None
    optimizer: Annotated[
        Named | None,
        Meta(
            description="Keras's name, momentum, nesterov, or my_package.my_module:function; with arguments,"
            " {name: adamw, weight_decay: 0.01}. By default the compiled model's, or adam."
        ),
    ] = None
    learning_rate: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(description="By default that of the compiled model's optimizer, or 0.001."),
    ] = None
    schedule: Annotated[
        Literal["constant", "cosine"] | None,
        Meta(description="The schedule of the learning rate; cosine decays it to 0 over the run."),
    ] = None
    warmup: Annotated[
        float,
        Meta(ge=0, lt=1, description="The share of the run in which the learning rate rises to its value."),
    ] = 0.0
    loss: Annotated[
        Named | None,
        Meta(
            description="Keras's name, or my_package.my_module:loss; with arguments, {name: huber, delta: 2}."
            " By default the compiled model's, or sparse_categorical_crossentropy."
        ),
    ] = None
    metrics: Annotated[
        tuple[Named, ...] | None,
        Meta(
            description="Keras's names, or my_package.my_module:metric; with arguments,"
            " {name: sparse_top_k_categorical_accuracy, k: 3}. By default the compiled model's; accuracy is"
            " always among them."
        ),
    ] = None
    callbacks: Annotated[
        tuple[Named, ...],
        Meta(
            description="Keras's names, or my_package.my_module:function, which returns a callback or a list;"
            " with arguments, {name: early_stopping, patience: 3}."
        ),
    ] = ()
    steps_per_execution: Annotated[
        Positive | None,
        Meta(
            description="Steps in one call of the graph. By default the number that the model is compiled"
            " with, if that is more than 1; 1 with callbacks; otherwise as many as take about half a second."
        ),
    ] = None
    jit_compile: Annotated[
        bool | None,
        Meta(description="Whether XLA compiles the step of each replica; by default, Keras decides."),
    ] = None
    profile: Annotated[
        str | None,
        Meta(
            description="Record these steps, such as 20:30, of all tasks in one timeline: docs/timeline.md."
        ),
    ] = None
    seed: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    on_nan: Annotated[
        Literal["stop", "skip"],
        Meta(
            description="What a NaN or infinite loss does: stop ends the run; skip continues from the last"
            " checkpoint without the batch of that step."
        ),
    ] = "stop"


class EvaluationSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Set when the model is evaluated on the test data, besides at the end."""

    every: Annotated[
        Positive | None, Meta(description="Steps between two evaluations; an epoch's by default.")
    ] = None
    batches: Annotated[
        Positive | None, Meta(description="How many batches of the test data are used; all by default.")
    ] = None


class CheckpointSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Set when checkpoints are saved, besides at the end, and whether a run resumes from them."""

    every: Annotated[
        Positive | None, Meta(description="Steps between two checkpoints; an epoch's by default.")
    ] = None
    keep: Annotated[
        Positive, Meta(description="How many of the newest checkpoints are kept, besides the best one.")
    ] = 3
    background: Annotated[
        bool,
        Meta(description="Whether training continues while a checkpoint is written; see reliability.md."),
    ] = False
    resume: Annotated[
        Literal["auto", "never"],
        Meta(description="auto resumes from the newest checkpoint of the run; with never, one is an error."),
    ] = "auto"


class SummariesSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Set what is written for TensorBoard."""

    every: Annotated[Positive, Meta(description="Steps between two points of the curves.")] = 50


class ExportSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Select the formats of the exported model, besides the SavedModel."""

    formats: Annotated[
        tuple[Literal["keras", "tflite"], ...], Meta(description="More formats to write.")
    ] = ()


class WatchSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Set when a task of the cluster counts as lost."""

    heartbeat_timeout: Annotated[
        float,
        Meta(ge=5, description="Seconds without an answer after which a task counts as lost."),
    ] = 30.0
    stall_timeout: Annotated[
        Literal["auto", "off"] | Annotated[float, Meta(ge=SHORTEST_SECONDS)],
        Meta(
            description="Seconds that a task may take for a step, or for a callback after it, before it"
            " counts as stuck, and so as lost. auto: 300, or more if steps take long. off: no limit."
        ),
    ] = "auto"


class MetricsSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Set what a monitor can read while the run lasts."""

    prometheus_port: Annotated[
        Annotated[int, Meta(ge=1, le=65535)] | None,
        Meta(
            description="The port at which Prometheus finds metrics of the run, on the machine of the chief.",
        ),
    ] = None
    prometheus_address: Annotated[
        str, Meta(description="The address to listen on; by default, all of the machine.")
    ] = "0.0.0.0"


class LaunchSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Set how a cluster on this machine is started."""

    threads: Annotated[
        Positive | None, Meta(description="Threads of each task; by default, the tasks share the cores.")
    ] = None
    pin: Annotated[bool, Meta(description="Bind each task that computes to cores of its own.")] = False
    restarts: Annotated[
        int,
        Meta(
            ge=0,
            description="How often lost tasks are started again without a new checkpoint in between: an"
            " evaluator and a worker of asynchronous updates alone, others with the whole cluster, from the"
            " last checkpoint.",
        ),
    ] = 3
    network_isolation: Annotated[
        Literal["auto", "always", "never"],
        Meta(
            description="Whether the tasks live in a private network: if the system allows it, always, never."
        ),
    ] = "auto"


class ElasticSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Train with fewer workers than the cluster has, and admit the others when they come."""

    min_workers: Annotated[Positive, Meta(description="The least number of workers to train with.")] = 1
    join_timeout: Annotated[
        Annotated[float, Meta(gt=0)], Meta(description="Seconds to wait at a start for all workers.")
    ] = 60.0


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Describe a whole run: the contents of a config file."""

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
    metrics: MetricsSection = MetricsSection()
    elastic: ElasticSection | None = None
    engine: EngineSection = EngineSection()

    def strategy_options(self, cluster: ClusterConfig) -> dict[str, Any]:
        """Return the arguments of `make_strategy`, except the cluster."""
        communication = _given(self.communication)
        options = {**_given(self.strategy), **({"communication": communication} if communication else {})}
        if cluster.ps:  # beside ps tasks, only workers use GPUs
            options.pop("memory_growth", None)
        return {"strategy": options.pop("name"), **options}


def name_and_arguments(value: Named) -> tuple[str, dict[str, Any]]:
    """Return the name in the config, and the arguments beside it."""
    if isinstance(value, str):
        return value, {}
    return value["name"], {key: argument for key, argument in value.items() if key != "name"}


def _given(section: msgspec.Struct) -> dict[str, Any]:
    return {key: value for key, value in msgspec.structs.asdict(section).items() if value is not None}


_RENAMED: dict[tuple[str, ...], str] = {
    ("elastic", "wait"): "join_timeout",
    ("launch", "isolate"): "network_isolation",
    ("train", "nonfinite"): "on_nan",
    ("watch", "silence"): "heartbeat_timeout",
}


@dataclass(frozen=True)
class Settings:
    """A config that was read, and the place of each part in its file."""

    config: Config
    document: Document
    path: str

    def command(self, task: Task | None = None) -> str:
        """Return the command that starts a task; without a task, the whole cluster on this machine."""
        words = ["python", "-m", "tfdist.train", "--config", self.path]
        return shlex.join(words if task is None else [*words, "--task", str(task)])

    def check_names(self) -> None:
        """Raise ConfigError for a mapping without a name, where a name with arguments is expected."""
        train, source = self.config.train, self.document.source.inside("train")
        values: dict[tuple[str | int, ...], Named | None] = {
            ("optimizer",): train.optimizer,
            ("loss",): train.loss,
            **{("metrics", index): value for index, value in enumerate(train.metrics or ())},
            **{("callbacks", index): value for index, value in enumerate(train.callbacks)},
        }
        for path, value in values.items():
            if isinstance(value, dict) and not isinstance(value.get("name"), str):
                expected = "a name, or a mapping with a name, such as {name: adamw, weight_decay: 0.01}"
                received = shown(value.get("name")) if "name" in value else "a mapping without name"
                raise ConfigError(source.at(*path), expected=expected, received=received)

    def check_profile(self) -> None:
        """Raise ConfigError if the steps to record are no range."""
        if self.config.train.profile is not None:
            place = self.document.source.inside("train").at("profile")
            parse_steps(self.config.train.profile, place)

    def check_evaluator(self) -> None:
        """Raise ConfigError for an evaluator task if the tasks that train need its results."""
        if self.config.train.until_accuracy is not None and self.config.cluster.evaluator:
            place = self.document.source.inside("train").at("until_accuracy")
            problem = "is not supported with an evaluator, whose results come after training has continued"
            raise ConfigError(place, problem, remedy="Leave one of the two out")

    def check_elastic(self, cluster: ClusterConfig) -> None:
        """Raise ConfigError if the file asks for elastic training where it is not supported."""
        section, config, source = self.config.elastic, self.config, self.document.source.inside("elastic")
        if section is None:
            return
        # A cluster of one worker counts too, because others may join it.
        is_mirrored = config.strategy.name == "auto" and not cluster.ps
        name = "multi_worker_mirrored" if is_mirrored else config.strategy.name
        fitting = "parameter_server_sync" if cluster.ps else "multi_worker_mirrored"
        if name != fitting or not cluster:
            problem = "is for clusters of multi_worker_mirrored or parameter_server_sync"
            remedy = "Leave it out: asynchronous workers come and go without it"
            raise ConfigError(source.at(), problem, remedy=remedy)
        if section.min_workers > cluster.size("worker"):
            expected, received = f"at most {cluster.size('worker')} workers", str(section.min_workers)
            raise ConfigError(source.at("min_workers"), expected=expected, received=received)
        if config.checkpoint.resume == "never":
            problem = "continues from checkpoints, but checkpoint.resume is never"
            raise ConfigError(
                source.at(), problem, remedy="Set checkpoint.resume: auto, or leave elastic out"
            )

    def find_cluster(
        self, *, task: Task | str | None = None, environ: Mapping[str, str] | None = None
    ) -> ClusterConfig:
        """Return the cluster that the file and the environment describe together."""
        return ClusterConfig.from_section(self.document.part("cluster"), task=task, environ=environ)


def read_config(path: str | PathLike[str], changes: Sequence[str] = ()) -> Settings:
    """Read a config file; an unknown key is an error.

    Args:
        path: The file.
        changes: Values that replace those of the file, such as `train.epochs=3`, and are checked alike.
    """
    if not Path(path).exists() and Path(path).stem in shipped_configs():
        remedy = f"tfdist configs {Path(path).stem} writes one of that name"
        raise ConfigError(str(path), "does not exist", remedy=remedy)
    document = read_yaml_file(path)
    for change in changes:
        document = _changed(document, change)
    settings = Settings(decode(document, Config, _RENAMED), document, str(path))
    settings.check_names()
    settings.check_profile()
    return settings


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
    """Return the JSON Schema of the config file."""
    return msgspec.json.schema(Config)
