"""Define the config file, read it, and write it as text."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import msgspec
import yaml
from msgspec.structs import asdict

from tfdist._utils.check_and_expand_paths import exists, path_or_address
from tfdist._utils.read_yaml_and_json import Document, decode, read_yaml, read_yaml_file
from tfdist._utils.shared_config_types import Named
from tfdist.cluster.config import ClusterConfig, ClusterSection, Task
from tfdist.errors import ConfigError, shown
from tfdist.launcher.hide_secrets import values_without_secrets
from tfdist.profiling.parse_step_range import parse_steps
from tfdist.strategies.options import CommunicationOptions
from tfdist.trainer.sections.data_and_model import DataSection, ModelSection
from tfdist.trainer.sections.engine import EngineSection
from tfdist.trainer.sections.evaluation_and_saving import (
    CheckpointSection,
    EvaluationSection,
    ExportSection,
    SummariesSection,
)
from tfdist.trainer.sections.starting_and_watching_tasks import (
    ElasticSection,
    LaunchSection,
    MetricsSection,
    WatchSection,
)
from tfdist.trainer.sections.strategy import StrategySection
from tfdist.trainer.sections.train import TrainSection
from tfdist.trainer.shipped_configs import shipped_configs


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Describe a whole run: the contents of a config file."""

    cluster: ClusterSection = ClusterSection()
    strategy: StrategySection = StrategySection()
    communication: CommunicationOptions = CommunicationOptions()
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
        """Return the arguments of `make_strategy`, except the cluster; None for what is not set."""
        options = {**asdict(self.strategy), "communication": asdict(self.communication)}
        if cluster.ps:  # beside ps tasks, only workers use GPUs
            del options["memory_growth"]
        elif len(cluster.training().tasks()) > 1:
            options["heartbeat_timeout"] = self.watch.heartbeat_timeout
        return {"strategy": options.pop("name"), **options}


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

    def check_evaluator(self) -> None:
        """Raise ConfigError for an evaluator task if the tasks that train need its results."""
        if self.config.train.until_accuracy is not None and self.config.cluster.evaluator:
            place = self.document.source.inside("train").at("until_accuracy")
            problem = "is not supported with an evaluator, whose results come after training has continued"
            raise ConfigError(place, problem, remedy="Leave one of the two out")

    def network_isolation(self, *, is_run_elsewhere: bool = False) -> Literal["auto", "always", "never"]:
        """Return launch.network_isolation; never, if the run or its data are in an object store.

        Raises:
            ConfigError: It is `always`, with which the tasks do not reach the store.
        """
        wanted, data = self.config.launch.network_isolation, self.config.data.name
        if not is_run_elsewhere and isinstance(path_or_address(data, "data.name"), Path):
            return wanted
        if wanted == "always":
            problem = "is 'always', but the tasks must reach the object store of the run or of its data"
            remedy = "Set it to 'never', or use folders of this machine"
            raise ConfigError(f"{self.path}: launch.network_isolation", problem, remedy=remedy)
        return "never"

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

    def cluster_for_scheduler(self, scheduler: str = "a scheduler") -> ClusterConfig:
        """Return the cluster of the file, for a scheduler, which chooses the addresses."""
        cluster = self.find_cluster(environ={})
        self.check_evaluator()
        if cluster and not cluster.is_on_ports_of_ours:
            problem = f"gives addresses, but {scheduler} chooses the machines"
            raise ConfigError(cluster.source.at(), problem, remedy="Write numbers, such as worker: 2")
        return cluster


def read_config(path: str | PathLike[str], changes: Sequence[str] = ()) -> Settings:
    """Read a config file; an unknown key is an error.

    Args:
        path: The file.
        changes: Values that replace those of the file, such as `train.epochs=3`, and are checked alike.
    """
    if not exists(path) and Path(path).stem in shipped_configs():
        remedy = f"tfdist configs {Path(path).stem} writes one of that name"
        raise ConfigError(str(path), "does not exist", remedy=remedy)
    document = read_yaml_file(path)
    for change in changes:
        document = _changed(document, change)
    settings = Settings(decode(document, Config, _RENAMED), document, str(path))
    settings.check_names()
    if settings.config.train.profile is not None:
        parse_steps(settings.config.train.profile, document.source.inside("train").at("profile"))
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


def config_text(config: Config) -> str:
    """Return a config as YAML with all keys, except for those of engines that are all at their defaults."""
    sections = msgspec.to_builtins(config)
    defaults = msgspec.to_builtins(EngineSection())
    engines = {name: engine for name, engine in sections.pop("engine").items() if engine != defaults[name]}
    sections |= {"engine": engines} if engines else {}
    text: str = yaml.safe_dump(sections, sort_keys=False, default_flow_style=None)
    return text


def recorded_sections(config: Config) -> dict[str, Any]:
    """Return a config for the files of a run: without secrets, and without `engine`, which may have some."""
    sections = msgspec.to_builtins(config)
    return {name: values_without_secrets(value) for name, value in sections.items() if name != "engine"}
