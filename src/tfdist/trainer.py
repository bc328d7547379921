"""Put a config together: cluster, strategy, data, model, loop, export. Each task of a cluster calls `train`.

What a run leaves behind, written by the chief alone:

    RUN/report.json         what was trained on what, and how well
    RUN/export/latest/      the SavedModel; its signature takes uint8 images and keys
    RUN/logs/               what each task said, where a launcher started it
"""

import json
import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import tensorflow as tf

from tfdist import __version__
from tfdist.cluster import ClusterConfig
from tfdist.config import Config
from tfdist.data import Data, open_data
from tfdist.errors import ConfigError, TfdistError
from tfdist.launcher import report_progress
from tfdist.loop import evaluate, fit
from tfdist.recipe import build_model, compiled_model, test_batches, train_batches
from tfdist.saved_model import export
from tfdist.server import serve
from tfdist.strategy import make_strategy

__all__ = ["Report", "train"]

_IMAGES_TO_CHECK = 16
_SECONDS_BETWEEN_REPORTS = 0.5


@dataclass(frozen=True)
class Report:
    """Hold what came of a run."""

    data: str
    substitute_for: str | None
    test_accuracy: float
    test_loss: float
    steps: int
    seconds: float
    export: str
    config: dict[str, Any]
    versions: dict[str, str]


def train(config: Config, cluster: ClusterConfig, run_dir: Path) -> Report | None:
    """Do this task's part of a run; give the report where this is the chief."""
    if cluster.evaluator or cluster.task == ("evaluator", 0):
        remedy = "Leave it out: the chief evaluates"
        raise ConfigError(cluster.source.at("evaluator"), "has no part in train", remedy=remedy)
    if cluster.serves:
        serve(cluster)
        return None
    started = time.monotonic()
    strategy = make_strategy(cluster, config.strategy.name, logical_devices=config.strategy.logical_devices)
    section = config.data
    data = open_data(**section.wanted())
    tf.keras.utils.set_random_seed(config.train.seed)
    with strategy.scope():
        model = compiled_model(config, data)
    per_epoch = config.train.steps_per_epoch or data.train_examples // section.batch_size
    steps = config.train.epochs * per_epoch
    fit(
        model,
        lambda context: train_batches(context, data, config),
        strategy=strategy,
        epochs=config.train.epochs,
        steps_per_epoch=per_epoch,
        callbacks=[_Reporting(steps, section.batch_size)] if cluster.is_chief else [],
        verbose=0,
    )
    found = evaluate(model, lambda context: test_batches(context, data, config), strategy=strategy)
    report = None
    if cluster.is_chief:
        report = _finish(config, data, model, found, run_dir, steps, time.monotonic() - started)
    if len(cluster.tasks()) > 1 and not cluster.ps:
        # A worker that ended while the chief still writes would be taken for a lost one.
        strategy.reduce("SUM", strategy.run(tf.function(lambda: tf.constant(1))), axis=None)
    return report


def _finish(
    config: Config,
    data: Data,
    model: Any,
    found: dict[str, float],
    run_dir: Path,
    steps: int,
    seconds: float,
) -> Report:
    """Write what the run leaves behind."""
    report = Report(
        data=data.name,
        substitute_for=data.substitute_for,
        test_accuracy=found["accuracy"],
        test_loss=found["loss"],
        steps=steps,
        seconds=seconds,
        export=str(_export(config, data, model, found, run_dir, steps)),
        config=msgspec.to_builtins(config),
        versions=_versions(),
    )
    _write(run_dir / "report.json", asdict(report))
    return report


class _Reporting(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Tell the launcher how far the training has come."""

    def __init__(self, steps: int, batch_size: int) -> None:
        super().__init__()
        self._steps = steps
        self._batch_size = batch_size
        self._done = self._in_earlier_epochs = 0
        self._last = (time.monotonic(), 0)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Note where the epoch's own count starts."""
        self._in_earlier_epochs = self._done

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Count the steps, which may come several at a time, and report twice a second."""
        self._done = self._in_earlier_epochs + batch + 1
        (then, before), now = self._last, time.monotonic()
        if now - then < _SECONDS_BETWEEN_REPORTS and self._done < self._steps:
            return
        self._last = (now, self._done)
        speed = (self._done - before) * self._batch_size / (now - then)
        loss = (logs or {}).get("loss")
        report_progress(
            self._done,
            self._steps,
            examples_per_second=speed,
            loss=None if loss is None else float(loss),
        )


def _export(
    config: Config, data: Data, model: Any, found: dict[str, float], run_dir: Path, steps: int
) -> Path:
    """Write the SavedModel, from a copy of the model whose variables are all in this process."""
    local = build_model(config, data)
    local.set_weights(model.get_weights())
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
    return export(local, run_dir / "export", step=steps, images=images.numpy(), metadata=metadata)


def _versions() -> dict[str, str]:
    return {"tfdist": __version__, "tensorflow": tf.__version__, "python": platform.python_version()}


def _write(path: Path, value: dict[str, Any]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(value, indent=2) + "\n")
        partial.replace(path)
    except OSError as error:
        raise TfdistError(str(path), f"cannot be written: {error.strerror or error}") from None
