"""Record the loss and the weights of a few training steps, and compare two such records."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import tensorflow as tf

from tfdist._utils.keras_2_and_3 import is_keras_2
from tfdist._utils.keras_private import layers_of, seed_generators
from tfdist.cluster.config import ClusterConfig
from tfdist.datasets.open_data import open_data
from tfdist.errors import ConfigError
from tfdist.strategies.factory import make_strategy
from tfdist.strategies.server import serve
from tfdist.trainer.batches_of_config import Batches
from tfdist.trainer.config import Config
from tfdist.trainer.model_of_config import initial_model
from tfdist.training.fit import fit

Numbers = Literal["float32", "float64"]

# A difference that is allowed in any case. Reordering a sum changes its rounding. In float64, about ten steps
# of a small model with its optimizer stay below a hundredth of this.
_LEAST_ALLOWED: dict[Numbers, float] = {"float64": 1e-10, "float32": 10 * float(np.finfo(np.float32).eps)}
# The cluster may differ from one process by this factor times what another order of sums changes in one
# process: each replica sums its own part, and TensorFlow may choose other kernels for the smaller batch.
_REORDERINGS = 10.0
# Where the order of the examples changes the loss by more than rounding, what is computed depends on it, and
# the order says nothing about the cluster.
_MOST_OF_LOSS: dict[Numbers, float] = {"float64": 1e-6, "float32": np.inf}
# A difference is relative to the largest number of its variable, and at least to this part of the largest
# number that is trained. A variable whose gradient is zero but for rounding, such as the bias of the keys of
# attention, has no size of its own.
_LEAST_SIZE = 1e-2


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
        recorder.write(path, model)


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

    def write(self, path: Path, model: Any) -> None:
        """Write all stored losses and weights to a file."""
        histories = enumerate(zip(*self._weights, strict=True))
        arrays: dict[str, Any] = {str(index): np.stack(steps) for index, steps in histories}
        names = [getattr(weight, "path", weight.name) for weight in model.weights]
        trainable = {id(weight) for weight in model.trainable_weights}
        are_trained = [id(weight) in trainable for weight in model.weights]
        np.savez(path, losses=self._losses, names=names, are_trained=are_trained, **arrays)


@dataclass(frozen=True)
class Difference:
    """The difference of two records after one step, where it is largest beside what is allowed there."""

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


def compare(one: Path, other: Path, reordered: Path, numbers: Numbers) -> list[Difference]:
    """Compare two records step by step, relative to the largest number of each variable.

    Args:
        one: The record of one process.
        other: The record of the cluster.
        reordered: The record of one process with another order of sums, which shows how much the order
            changes each variable.
        numbers: The number type of the records.
    """
    ours, theirs, again = map(_read, (one, other, reordered))
    apart = ours.differences(theirs)
    noise = np.maximum.accumulate(ours.differences(again), axis=1)  # up to each step
    allowed = np.fmax(_REORDERINGS * noise, _LEAST_ALLOWED[numbers])
    allowed[0] = np.fmin(allowed[0], _MOST_OF_LOSS[numbers])
    excess = apart / allowed
    worst = np.argmax(np.where(np.isnan(excess), np.inf, excess), axis=0)
    return [
        Difference(
            step + 1,
            float(ours.losses[step]),
            float(theirs.losses[step]),
            float(apart[row, step]),
            ours.names[row],
            float(allowed[row, step]),
        )
        for step, row in enumerate(worst)
    ]


class _Record(NamedTuple):
    """A record of steps.

    Attributes:
        names: The names of the rows: "loss", and the variables.
        rows: The numbers of each row, after each step.
        are_trained: Whether a variable is trained, for each row.
    """

    names: list[str]
    rows: list[Any]
    are_trained: list[bool]

    @property
    def losses(self) -> Any:
        """Return the loss of each step."""
        return self.rows[0][:, 0]

    def differences(self, other: "_Record") -> Any:
        """Return the largest difference in each row and step, relative to the row's size."""
        largest = np.stack([np.abs(row).max(axis=1, initial=0.0) for row in self.rows])
        apart = [
            np.abs(mine - its).max(axis=1, initial=0.0)
            for mine, its in zip(self.rows, other.rows, strict=True)
        ]
        least = _LEAST_SIZE * largest[self.are_trained].max(axis=0, initial=0.0)
        least = np.where(np.arange(len(largest))[:, np.newaxis] > 0, least, 0.0)  # the loss has its own size
        return np.stack(apart) / np.maximum(np.maximum(largest, least), np.finfo(np.float32).tiny)


def _read(path: Path) -> _Record:
    with np.load(path) as stored:
        names = stored["names"].tolist()
        arrays = [stored["losses"], *(stored[str(index)] for index in range(len(names)))]
        rows = [array.reshape(len(array), -1).astype(np.float64) for array in arrays]
        return _Record(["loss", *names], rows, [False, *stored["are_trained"].tolist()])


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
