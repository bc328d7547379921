"""Define what the two experiments on y = e^x share: the points, the network, its training, and the plot."""

import argparse
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

POINTS, BATCH, EPOCHS, UNITS = 256, 64, 40, 16
Batch = tuple[np.ndarray, np.ndarray]


def network() -> list[Any]:
    """Make the layers, from one number to one number, with the same weights each time."""
    tf.keras.backend.set_floatx("float64")  # another order of sums is then no visible difference
    dense, initial = tf.keras.layers.Dense, tf.keras.initializers.GlorotUniform
    hidden = [dense(UNITS, "tanh", kernel_initializer=initial(seed=seed)) for seed in range(3)]
    return [*hidden, dense(1, kernel_initializer=initial(seed=3))]


def built(layers: list[Any], width: int) -> tf.keras.Sequential:
    """Make a model of some layers, and their variables on the device of the block that this is called in."""
    return tf.keras.Sequential([tf.keras.Input((width,)), *layers])


def adam(model: tf.keras.Sequential) -> Any:
    """Make the optimizer of a model, and its variables on the device of the block."""
    optimizer = tf.keras.optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)
    return optimizer


def train(step: Callable[[Batch], Any]) -> list[float]:
    """Run a step with each batch; return the mean loss of each epoch."""
    return [float(np.mean([float(step(batch)) for batch in epoch])) for epoch in _epochs()]


def _epochs() -> Iterator[list[Batch]]:
    x = np.linspace(-1.0, 2.0, POINTS)[:, None]
    order = np.random.default_rng(2016)
    for _ in range(EPOCHS):
        shuffled = x[order.permutation(POINTS)]
        yield [(part, np.exp(part)) for part in np.split(shuffled, POINTS // BATCH)]


def flags(about: str | None) -> argparse.Namespace:
    """Read the flags of either experiment."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plot", type=Path, help="where to draw the curves (needs matplotlib)")
    return parser.parse_args()


def compare(curves: Mapping[str, list[float]], plot: Path | None) -> None:
    """Print how far apart two curves are, and draw both."""
    one, other = curves.values()
    apart = max(abs(a - b) / a for a, b in zip(one, other, strict=True))
    print(
        f"the loss went from {one[0]:.3f} to {one[-1]:.2e}; the curves are {apart:.1e} of their height apart"
    )
    if plot is None:
        return
    from matplotlib.figure import Figure

    axes = (figure := Figure(layout="constrained")).subplots()
    for (name, curve), style in zip(curves.items(), ("-", ":"), strict=True):
        axes.semilogy(range(1, EPOCHS + 1), curve, style, label=name, linewidth=3)
    axes.set(title="y = e^x", xlabel="epoch", ylabel="mean squared error")
    axes.legend()
    figure.savefig(plot, dpi=150)
