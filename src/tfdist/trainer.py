"""Put a config together: cluster, strategy, data, model, run, export. Each task of a cluster calls `train`.

What a run leaves behind, written by the chief alone:

    RUN/report.json         what was trained on what, and how well
    RUN/export/latest/      the SavedModel; its signature takes uint8 images and keys
    RUN/checkpoints/        what it takes to go on, one folder a step
    RUN/summaries/          what TensorBoard shows
    RUN/logs/               what each task said, where a launcher started it
"""

import logging
import platform
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import tensorflow as tf

from tfdist import __version__
from tfdist.checkpoint import find_newest
from tfdist.cluster import ClusterConfig
from tfdist.config import Config, ElasticSection
from tfdist.data import Data, open_data
from tfdist.departures import Departures
from tfdist.devices import check_device
from tfdist.elastic import Elastic
from tfdist.errors import Preempted, TaskLost, TfdistError
from tfdist.evaluator import evaluate_checkpoints
from tfdist.farewell import withhold_farewell
from tfdist.files import remove_partial, storage_errors, write_json
from tfdist.loop import naming_lost_tasks, wait_for_all
from tfdist.preemption import Notice, hearing_notice
from tfdist.recipe import build_model, compiled_model, steps_per_epoch, total_steps
from tfdist.recovery import check_nonfinite
from tfdist.run import Run
from tfdist.saved_model import export, try_formats
from tfdist.server import serve
from tfdist.strategy import check_strategy, make_strategy
from tfdist.traffic import Traffic
from tfdist.watcher import Watcher

__all__ = ["Report", "rehearse", "train"]

_IMAGES_TO_CHECK = 16
_IMAGES_AT_ONCE = 500
# Another order of summing may turn an image or two, of ten thousand, that stand between two classes.
_ACCURACY_TOLERANCE = 2e-3
_log = logging.getLogger("tfdist")


@dataclass(frozen=True)
class Report:
    """Hold what came of a run."""

    data: str
    substitute_for: str | None
    test_accuracy: float
    test_loss: float
    steps: int
    skipped_batches: list[int]
    begun_at_step: int
    starts: int
    steps_lost: int
    seconds: float
    bytes_sent_per_step: dict[str, int]
    export: str
    config: dict[str, Any]
    versions: dict[str, str]


def train(config: Config, cluster: ClusterConfig, folder: Path) -> Report | None:
    """Do this task's part of a run; give the report where this is the chief.

    Raises:
        Preempted: This or another task was told to end (SIGTERM). What was trained is saved.
    """
    if cluster.serves:
        stays, silence = config.elastic is not None, config.watch.silence
        serve(cluster, **config.strategy.serving(), silence_timeout=silence, stays=stays)
        return None
    with hearing_notice() as notice:
        if cluster.task is not None and cluster.task.type == "evaluator":
            evaluate_checkpoints(config, cluster, folder)
            return None
        if config.elastic is not None:
            return _train_elastic(config, config.elastic, cluster, folder, notice)
        try:
            return _train(config, cluster, config.strategy_options(cluster), folder, notice)
        except Preempted:
            withhold_farewell()
            raise


def _train_elastic(
    config: Config, section: ElasticSection, cluster: ClusterConfig, folder: Path, notice: Notice
) -> Report | None:
    elastic = Elastic(config, section, cluster)
    try:
        return _train(config, elastic.cluster, elastic.strategy, folder, notice, elastic)
    except (TaskLost, Preempted) as error:
        if notice.has_come:  # for this task itself
            raise
        elastic.go_on_without(error)


def _train(
    config: Config,
    cluster: ClusterConfig,
    options: Mapping[str, Any],
    folder: Path,
    notice: Notice,
    elastic: Elastic | None = None,
) -> Report | None:
    with notice.kept():
        strategy = make_strategy(cluster, **options)
    is_apart = isinstance(strategy, tf.distribute.ParameterServerStrategy)
    at_loss = None if elastic is None else elastic.go_on_without
    spared = ("worker",) if is_apart else ()
    watcher = Watcher(cluster, silence=config.watch.silence, spared=spared, at_loss=at_loss)
    # Of the others each takes part in what is agreed on, or can be done without.
    servers = [
        task for task in cluster.training().tasks() if cluster.ps and task.type not in ("chief", *spared)
    ]
    with watcher, naming_lost_tasks("train", strategy), Departures(servers) as departures:
        return _train_on(strategy, config, cluster, folder, notice, departures, elastic)


def _train_on(
    strategy: tf.distribute.Strategy,
    config: Config,
    cluster: ClusterConfig,
    folder: Path,
    notice: Notice,
    departures: Departures,
    elastic: Elastic | None,
) -> Report | None:
    started = time.monotonic()
    data = open_data(**config.data.wanted())
    if data.substitute_for:
        _log.warning("ATTENTION: '%s' is taken in place of '%s'", data.name, data.substitute_for)
    if cluster.is_chief and config.export.formats:
        try_formats(build_model(config, data), data.image_shape, config.export.formats)
    if cluster.is_chief:
        for each in (folder, folder / "checkpoints", folder / "export"):
            remove_partial(each)
    tf.keras.utils.set_random_seed(config.train.seed)
    with strategy.scope():
        model = compiled_model(config, data)
    take_in = None if elastic is None else elastic.take_in
    run = Run(config, cluster, strategy, data, model, folder, notice, departures, take_in)
    with Traffic(strategy) as traffic:
        found = run.train()
    weights = model.get_weights()  # by all tasks: Keras 2 puts together what each of them has
    report = None
    if cluster.is_chief:
        local = build_model(config, data)
        local.set_weights(weights)
        _check_answers(run, data, local, found, config.evaluation.batches)
        report = Report(
            data=data.name,
            substitute_for=data.substitute_for,
            test_accuracy=found["accuracy"],
            test_loss=found["loss"],
            steps=run.step,
            skipped_batches=run.skipped_batches,
            begun_at_step=run.begun_at,
            starts=len(run.history),
            steps_lost=sum(start.lost for start in run.history),
            export=str(_export(config, data, local, found, folder, run.step)),
            seconds=time.monotonic() - started,
            bytes_sent_per_step={
                task: round(sent / max(1, run.step - run.begun_at))
                for task, sent in traffic.bytes_sent.items()
            },
            config=msgspec.to_builtins(config),
            versions=_versions(),
        )
        write_json(folder / "report.json", asdict(report))
        run.close()
    wait_for_all(strategy)  # a worker that ended while the chief still writes would be taken for lost
    return report


def rehearse(config: Config, cluster: ClusterConfig, folder: Path) -> list[str]:
    """Check in this process what a run needs, without training; say what was found."""
    lead = cluster.with_task(cluster.lead) if cluster else cluster
    name = check_strategy(lead, **config.strategy_options(cluster))
    check_nonfinite(config, is_apart=name == "parameter_server")
    if cluster.is_on_ports_of_ours or cluster.task is not None or not cluster:
        check_device(config.strategy.device, memory_growth=config.strategy.memory_growth)
    data = open_data(**config.data.wanted())
    model = compiled_model(config, data)
    if config.export.formats:
        try_formats(model, data.image_shape, config.export.formats)
    total, per_epoch = total_steps(config, data), steps_per_epoch(config, data)
    with storage_errors(folder), tempfile.TemporaryDirectory(dir=_existing(folder), prefix=".tfdist-"):
        free = shutil.disk_usage(_existing(folder)).free
    size = 4 * model.count_params()
    begun = find_newest(folder / "checkpoints")
    instead = f" in place of {data.substitute_for}" if data.substitute_for else ""
    shape = "x".join(map(str, data.image_shape))
    return [
        f"data      {data.name}{instead}: {data.train_examples} images to train on, {data.test_examples} to"
        f" test on, {shape}, {len(data.classes)} classes",
        f"model     {config.model.name}: {model.count_params()} parameters, {size / 1e6:.1f} MB",
        f"steps     {total} of {config.data.batch_size} examples; {per_epoch} are an epoch",
        f"goes to   {folder}: {free / 1e9:.1f} GB free"
        + (f"; goes on from its step {begun.step}" if begun else ""),
        "Nothing was trained.",
    ]


def _existing(folder: Path) -> Path:
    """Give the nearest folder above that exists."""
    return next(each for each in (folder, *folder.parents) if each.is_dir())


def _check_answers(run: Run, data: Data, model: Any, found: dict[str, float], batches: int | None) -> None:
    """Let this process alone classify the test images, and hold it against what the cluster counted."""
    images, labels = data.prepared.split("test").arrays()
    count = len(labels) if batches is None else min(len(labels), batches * _IMAGES_AT_ONCE)
    answers = np.concatenate(
        [
            np.argmax(model.predict_on_batch(images[start : min(count, start + _IMAGES_AT_ONCE)]), axis=-1)
            for start in range(0, count, _IMAGES_AT_ONCE)
        ]
    )
    run.show_answers(images[:count], labels[:count], answers)
    accuracy = float(np.mean(answers == labels[:count]))
    if batches is None and abs(accuracy - found["accuracy"]) > _ACCURACY_TOLERANCE:
        problem = (
            f"classifies {accuracy:.4f} of the test images rightly, the trained one {found['accuracy']:.4f}"
        )
        raise TfdistError("the model to be exported", problem, remedy="Report it: this is a fault of tfdist")


def _export(config: Config, data: Data, model: Any, found: dict[str, float], folder: Path, step: int) -> Path:
    """Write the SavedModel, from a copy of the model whose variables are all in this process."""
    images, _ = next(iter(data.test(_IMAGES_TO_CHECK)))
    metadata = {
        "model": config.model.name,
        "data": data.name,
        "substitute_for": data.substitute_for,
        "data_fingerprint": data.fingerprint,
        "classes": list(data.classes),
        "test": found,
        "versions": _versions(),
    }
    return export(
        model,
        folder / "export",
        step=step,
        images=images.numpy(),
        metadata=metadata,
        formats=config.export.formats,
    )


def _versions() -> dict[str, str]:
    return {"tfdist": __version__, "tensorflow": tf.__version__, "python": platform.python_version()}
