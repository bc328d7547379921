"""Record the loss and the weights of a few training steps, and compare two such records."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from tfdist._utils.keras_2_and_3 import is_keras_2
from tfdist._utils.keras_private import layers_of, seed_generators
from tfdist.cluster.config import ClusterConfig
from tfdist.datasets.open_data import open_data
from tfdist.errors import ConfigError
from tfdist.strategies.factory import make_strategy
from tfdist.strategies.server import serve
from tfdist.trainer.config import Config
from tfdist.trainer.model_and_datasets import Batches, initial_model
from tfdist.training.fit import fit

Numbers = Literal["float32", "float64"]

# Reordering a sum changes its rounding. In float64, about ten steps of a small model with its optimizer stay
# below a hundredth of this.
_FLOAT64_TOLERANCE = 1e-10
# The cluster may differ from one process by this factor times what another order of sums changes in one
# process: each replica sums its own part, and TensorFlow may choose other kernels for the smaller batch.
_REORDERINGS = 10.0


def record(
    config: Config, cluster: ClusterConfig, path: Path, *, steps: int, numbers: Numbers, reverse: bool = False
) -> None:
    """Train some steps; if this is the chief, write the loss and all weights of each step to a file.

    Args:
        config: What to train. Dropout is switched off, because each replica draws its own masks.
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
    model = initial_model(config, data, strategy)
    _switch_dropout_off(model)
    _check_normalization(model)
    recorder, of_config = _Recorder(), Batches.of(config, data, model, strategy)

    def batches(context: tf.distribute.InputContext) -> tf.data.Dataset:
        dataset = of_config.train(context)
        return dataset.map(lambda x, y: (x[::-1], y[::-1])) if reverse else dataset

    # With one step per epoch, fit reports the loss of each step.
    fit(model, batches, strategy=strategy, epochs=steps, steps_per_epoch=1, callbacks=[recorder], verbose=0)
    if cluster.is_chief:
        recorder.write(path, [getattr(weight, "path", weight.name) for weight in model.weights])


class _Recorder(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """A callback that stores the loss and the weights after each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self._losses: list[float] = []
        self._weights: list[list[Any]] = []

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Store the loss and the weights."""
        self._losses.append((logs or {})["loss"])
        self._weights.append(self.model.get_weights())

    def write(self, path: Path, names: list[str]) -> None:
        """Write all stored losses and weights to a file."""
        histories = enumerate(zip(*self._weights, strict=True))
        arrays: dict[str, Any] = {str(index): np.stack(steps) for index, steps in histories}
        np.savez(path, losses=np.array(self._losses), names=np.array(names), **arrays)


@dataclass(frozen=True)
class Difference:
    """The difference of two records after one step, and the difference that is allowed."""

    step: int
    loss: float
    other_loss: float
    worst: float
    where: str
    allowed: float

    @property
    def is_allowed(self) -> bool:
        """Return whether reordering sums explains the difference; NaN is never allowed."""
        return self.worst <= self.allowed


def compare(one: Path, other: Path, reordered: Path | None) -> list[Difference]:
    """Compare two records step by step, relative to the largest number of each variable.

    Args:
        one: The record of one process.
        other: The record of the cluster.
        reordered: The record of one process with another order of sums, which shows how much the order
            changes; None if the records are in float64.
    """
    pairs = _apart(one, other)
    noise = [0.0] * len(pairs) if reordered is None else [worst for *_, worst, _ in _apart(one, reordered)]
    differences = []
    for step, (loss, other_loss, worst, where) in enumerate(pairs):
        allowed = _FLOAT64_TOLERANCE
        if reordered is not None:
            allowed = _REORDERINGS * max(float(np.finfo(np.float32).eps), *noise[: step + 1])
        differences.append(Difference(step + 1, loss, other_loss, worst, where, allowed))
    return differences


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
    """Return, for each step, the largest difference relative to the largest number."""
    steps = len(ours)
    ours, theirs = ours.reshape(steps, -1).astype(np.float64), theirs.reshape(steps, -1).astype(np.float64)
    size = np.maximum(np.abs(ours).max(axis=1, initial=0.0), np.finfo(np.float32).tiny)
    return np.abs(ours - theirs).max(axis=1, initial=0.0) / size


def _switch_dropout_off(model: Any) -> None:
    """Make layers drop nothing, also the cells of recurrent layers.

    Raises:
        ConfigError: A layer draws random numbers for something else, on each replica its own.
    """
    for layer in layers_of(model):
        drops = {name for name in vars(layer) if "dropout" in name.lower()}
        for name in drops & {"dropout", "recurrent_dropout"}:
            if isinstance(getattr(layer, name), float):
                setattr(layer, name, 0.0)
        if "Dropout" in type(layer).__name__ and hasattr(layer, "rate"):
            layer.rate = 0.0
        elif not drops and not is_keras_2(model) and seed_generators(layer):
            problem = "draws random numbers, on each replica its own, so a cluster computes something else"
            remedy = "Verify a model without it, such as one that reads data that are augmented before"
            raise ConfigError(f"layer {layer.name}", problem, remedy=remedy)


def _check_normalization(model: Any) -> None:
    for layer in layers_of(model):
        if type(layer).__name__ == "BatchNormalization" and not getattr(layer, "synchronized", False):
            problem = "normalises each replica's own part of the batch, so a cluster computes something else"
            remedy = "Build it with synchronized=True, or verify a model without it"
            raise ConfigError(f"layer {layer.name}", problem, remedy=remedy)
