"""Train one model with synchronous and asynchronous updates, on even workers, and with a slow one among them.

    python examples/sync_async.py --plot curves.png

Starts four clusters of a ps and two workers, one after the other, and prints loss against examples and
against time. The slow worker is stopped for three quarters of the time, by SIGSTOP and SIGCONT as cpulimit
does it: a processor of a quarter of the speed. Synchronous workers add their gradients up in each step, and
wait for the last; asynchronous ones each change the variables when ready, with twice as many smaller steps.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import tensorflow as tf

import tfdist

INPUTS, UNITS, CLASSES, BATCH, WORKERS = 256, 1024, 10, 64, 2  # a batch: of one worker
POINTS = 10  # of a curve
SLOWED = "while kill -STOP $PPID; do sleep 0.03; kill -CONT $PPID; sleep 0.01; done 2>/dev/null"
SETUPS = {
    "synchronous, even": ("parameter_server_sync", False),
    "asynchronous, even": ("parameter_server", False),
    "synchronous, one slow": ("parameter_server_sync", True),
    "asynchronous, one slow": ("parameter_server", True),
}
Curve = list[tuple[int, float, float]]


def make_dataset(context: tf.distribute.InputContext) -> tf.data.Dataset:
    """Draw points, each with the class that a hidden network gives it."""
    hidden = tf.random.stateless_normal([INPUTS, CLASSES], [1, 2])

    def drawn(seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        x = tf.random.stateless_normal([BATCH, INPUTS], tf.stack([seed, 0]))
        return x, tf.argmax(tf.tanh(x) @ hidden, axis=1)

    return tf.data.Dataset.random(seed=1 + context.input_pipeline_id).map(drawn)


class Clock(tf.keras.callbacks.Callback):
    """Note when each point of the curve was reached."""

    def on_train_begin(self, logs: Any = None) -> None:
        """Begin."""
        self.began = time.monotonic()
        self.seconds: list[float] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Note the time."""
        self.seconds.append(time.monotonic() - self.began)


def trained(strategy: tf.distribute.Strategy, steps: int) -> Curve:
    """Train; give examples, seconds and loss of each point of the curve."""
    is_in_step = not isinstance(strategy, tf.distribute.ParameterServerStrategy)
    layers = tf.keras.layers
    tf.keras.utils.set_random_seed(1)
    with strategy.scope():
        hidden = [layers.Dense(UNITS, "relu") for _ in range(2)]
        model = tf.keras.Sequential([tf.keras.Input((INPUTS,)), *hidden, layers.Dense(CLASSES)])
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(tf.keras.optimizers.SGD(0.1), loss)
    weights, clock = model.get_weights(), Clock()
    tfdist.fit(model, make_dataset, strategy=strategy, steps_per_epoch=4, verbose=0)  # it traces
    model.set_weights(weights)
    per_point = steps // POINTS if is_in_step else steps * WORKERS // POINTS
    history = tfdist.fit(
        model,
        make_dataset,
        strategy=strategy,
        epochs=POINTS,
        steps_per_epoch=per_point,
        callbacks=[clock],
        verbose=0,
    ).history
    examples = [(point + 1) * (steps // POINTS) * BATCH * WORKERS for point in range(POINTS)]
    return list(zip(examples, clock.seconds, history["loss"], strict=True))


def be_a_task(cluster: tfdist.ClusterConfig, flags: argparse.Namespace) -> None:
    """Serve, maybe slowly; or be the chief, and write the curve."""
    if not cluster.serves:
        strategy = tfdist.make_strategy(cluster, flags.strategy)
        flags.into.write_text(json.dumps(trained(strategy, flags.steps)))
        return
    if flags.slow and cluster.task == ("worker", 1):
        subprocess.Popen(["sh", "-c", SLOWED])  # ends with this process
    tfdist.serve(cluster)


def curve_of(strategy: str, is_slow: bool, steps: int) -> Curve:
    """Start a cluster on this machine, and give its curve."""
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder, "curve.json")
        options = [f"--into={into}", f"--strategy={strategy}", f"--steps={steps}"]
        script = [sys.executable, __file__, *options, *(["--slow"] if is_slow else [])]
        shape = [f"--workers={WORKERS}", "--ps=1", f"--run_dir={folder}/run"]
        launch = [sys.executable, "-m", "tfdist", "launch", *shape, "--", *script]
        subprocess.run(launch, check=True, stdout=subprocess.DEVNULL)
        return [tuple(point) for point in json.loads(into.read_text())]


def show(curves: dict[str, Curve], plot: Path | None) -> None:
    """Print the loss at each point of all curves, and the time it took; draw both."""
    print("| examples | " + " | ".join(curves) + " |\n" + "|---" * (1 + len(curves)) + "|")
    for row in zip(*curves.values(), strict=True):
        cells = [f"{loss:.3f} after {seconds:.1f} s" for _, seconds, loss in row]
        print(f"| {row[0][0]} | {' | '.join(cells)} |")
    if plot is None:
        return
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    for axes, place, what in zip(figure.subplots(1, 2), (0, 1), ("examples", "seconds"), strict=True):
        for name, curve in curves.items():
            style = ":" if SETUPS[name][1] else "-"  # two of the curves lie on each other
            axes.plot([point[place] for point in curve], [point[2] for point in curve], style, label=name)
        axes.set(xlabel=what, ylabel="loss")
    axes.legend()
    figure.savefig(plot, dpi=150)


def main() -> None:
    """Run a task of a cluster; or start the clusters, and compare them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=500, help="of both workers together")
    parser.add_argument("--plot", type=Path, help="where to draw the curves (needs matplotlib)")
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--strategy", help=argparse.SUPPRESS)
    parser.add_argument("--slow", action="store_true", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.into:
        be_a_task(tfdist.ClusterConfig.from_environment(), flags)
        return
    curves = {}
    for name, (strategy, is_slow) in SETUPS.items():
        curves[name] = curve_of(strategy, is_slow, flags.steps)
        print(f"{name}: {curves[name][-1][1]:.1f} s", flush=True)
    show(curves, flags.plot)


if __name__ == "__main__":
    main()
