"""Train a few steps and record each; compare two records, number by number."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from tfdist.cluster import ClusterConfig
from tfdist.config import Config
from tfdist.data import open_data
from tfdist.errors import ConfigError
from tfdist.loop import fit
from tfdist.recipe import compiled_model, train_batches
from tfdist.server import serve
from tfdist.strategy import make_strategy

__all__ = ["Difference", "compare", "record"]

Numbers = Literal["float32", "float64"]

# Reordering a sum changes it by the rounding of its terms: in float64, some ten steps of a small model,
# optimizer and all, stay a hundred times and more below this.
_FLOAT64_TOLERANCE = 1e-10
# How much further from one process the cluster may be than that process is from itself with another order of
# its sums: each replica sums a part of its own, and other kernels may be chosen for the smaller batch.
_REORDERINGS = 10.0


def record(
    config: Config, cluster: ClusterConfig, path: Path, *, steps: int, numbers: Numbers, reverse: bool = False
) -> None:
    """Train some steps; where this is the chief, write the loss and all weights after each to a file.

    Args:
        config: What to train. Dropout is switched off: its masks are drawn anew by each replica.
        cluster: The cluster and this process's task.
        path: An `.npz` file.
        steps: How many steps.
        numbers: The number type of all computation.
        reverse: Take each batch's examples in reverse order: the same sums, in another order.
    """
    if cluster.serves:
        serve(cluster, **config.strategy.serving())
        return
    tf.keras.backend.set_floatx(numbers)
    strategy = make_strategy(cluster, **{**config.strategy_options(cluster), "precision": numbers})
    data = open_data(**config.data.wanted())
    tf.keras.utils.set_random_seed(config.train.seed)
    with strategy.scope():
        model = compiled_model(config, data)
    _switch_dropout_off(model)
    _check_normalization(model)
    recorder = _Recorder()

    def batches(context: tf.distribute.InputContext) -> tf.data.Dataset:
        dataset = train_batches(context, data, config)
        return dataset.map(lambda x, y: (x[::-1], y[::-1])) if reverse else dataset

    # One step an epoch: so the loss that fit reports is that step's own.
    fit(
        model,
        batches,
        strategy=strategy,
        epochs=steps,
        steps_per_epoch=1,
        callbacks=[recorder],
        verbose=0,
    )
    if cluster.is_chief:
        recorder.write(path, [getattr(weight, "path", weight.name) for weight in model.weights])


class _Recorder(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Keep the loss and the weights after each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self._losses: list[float] = []
        self._weights: list[list[Any]] = []

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Keep them."""
        self._losses.append((logs or {})["loss"])
        self._weights.append(self.model.get_weights())

    def write(self, path: Path, names: list[str]) -> None:
        """Write what was kept."""
        each_weight = enumerate(zip(*self._weights, strict=True))
        arrays: dict[str, Any] = {str(index): np.stack(steps) for index, steps in each_weight}
        np.savez(path, losses=np.array(self._losses), names=np.array(names), **arrays)


@dataclass(frozen=True)
class Difference:
    """Hold how far two records are apart after one step, and how far they may be."""

    step: int
    loss: float
    other_loss: float
    worst: float
    where: str
    allowed: float

    @property
    def is_allowed(self) -> bool:
        """Say whether reordering sums explains the difference; what is not a number never passes."""
        return self.worst <= self.allowed


def compare(one: Path, other: Path, reordered: Path | None) -> list[Difference]:
    """Compare two records step by step, relative to the largest number of each variable.

    Args:
        one: The record of one process.
        other: The record of the cluster.
        reordered: The record of one process that summed in another order, which says how much that changes;
            without one, the records are of float64.
    """
    pairs = _apart(one, other)
    noise = [0.0] * len(pairs) if reordered is None else [worst for *_, worst, _ in _apart(one, reordered)]
    found = []
    for step, (loss, other_loss, worst, where) in enumerate(pairs):
        allowed = _FLOAT64_TOLERANCE
        if reordered is not None:
            allowed = _REORDERINGS * max(float(np.finfo(np.float32).eps), *noise[: step + 1])
        found.append(Difference(step + 1, loss, other_loss, worst, where, allowed))
    return found


def _apart(one: Path, other: Path) -> list[tuple[float, float, float, str]]:
    with np.load(one) as ours, np.load(other) as theirs:
        names = ["loss", *ours["names"].tolist()]
        columns = ["losses", *(str(index) for index in range(len(names) - 1))]
        apart = np.stack([_relative(ours[column], theirs[column]) for column in columns])
        worst = np.argmax(np.where(np.isnan(apart), np.inf, apart), axis=0)
        return [
            (float(ours["losses"][step]), float(theirs["losses"][step]), float(apart[row, step]), names[row])
            for step, row in enumerate(worst)
        ]


def _relative(ours: Any, theirs: Any) -> Any:
    """Give, for each step, the largest difference relative to the largest number."""
    steps = len(ours)
    ours, theirs = ours.reshape(steps, -1).astype(np.float64), theirs.reshape(steps, -1).astype(np.float64)
    size = np.maximum(np.abs(ours).max(axis=1, initial=0.0), np.finfo(np.float32).tiny)
    return np.abs(ours - theirs).max(axis=1, initial=0.0) / size


def _layers(model: Any) -> list[Any]:
    layers = [layer for each in getattr(model, "layers", []) for layer in _layers(each)]
    return [model, *layers]


def _switch_dropout_off(model: Any) -> None:
    for layer in _layers(model):
        if "Dropout" in type(layer).__name__ and hasattr(layer, "rate"):
            layer.rate = 0.0


def _check_normalization(model: Any) -> None:
    for layer in _layers(model):
        if type(layer).__name__ == "BatchNormalization" and not getattr(layer, "synchronized", False):
            problem = "normalises each replica's own part of the batch, so a cluster computes something else"
            remedy = "Build it with synchronized=True, or verify a model without it"
            raise ConfigError(f"layer {layer.name}", problem, remedy=remedy)
