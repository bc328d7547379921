"""Learn y = e^x by a small network whose gradients are averaged over two workers, as people did in 2016.

    python examples/exp_data_parallel.py --curve alone.json
    python -m tfdist.launch --workers 2 --ps 1 -- python examples/exp_data_parallel.py --curve together.json
    python examples/exp_data_parallel.py --compare alone.json together.json --plot curves.png

In every step each worker computes the gradients on its half of the batch; the parameter server applies their
average. The loss curve of the cluster lies on that of the single process.
"""

import argparse
import json
from pathlib import Path

import tfdist

POINTS, BATCH, EPOCHS = 256, 64, 100


def train(curve: Path) -> None:
    """Do this process's part; the chief writes the loss of each epoch."""
    cluster = tfdist.ClusterConfig.from_environment()
    if cluster.serves:
        tfdist.serve(cluster)
        return
    import tensorflow as tf

    tf.keras.backend.set_floatx("float64")
    name = "parameter_server_sync" if cluster.ps else "auto"
    strategy = tfdist.make_strategy(cluster, name, precision="float64")
    tf.keras.utils.set_random_seed(2016)
    layers = tf.keras.layers
    with strategy.scope():
        hidden = [layers.Dense(16, "tanh") for _ in range(3)]
        model = tf.keras.Sequential([tf.keras.Input((1,)), *hidden, layers.Dense(1)])
        model.compile(tf.keras.optimizers.Adam(0.01), "mean_squared_error")
    x = tf.linspace(tf.constant(-1.0, tf.float64), 2.0, POINTS)[:, None]
    batches = tf.data.Dataset.from_tensor_slices((x, tf.exp(x))).shuffle(POINTS, seed=1).batch(BATCH)
    history = tfdist.fit(model, batches, strategy=strategy, epochs=EPOCHS, verbose=0)
    if cluster.is_chief:
        losses = history.history["loss"]
        curve.write_text(json.dumps(losses))
        print(f"{strategy.num_replicas_in_sync} replicas: the loss went down to {losses[-1]:.2e}")


def compare(one: Path, other: Path, plot: Path | None) -> None:
    """Say how far apart two curves are, and draw both."""
    curves = [json.loads(path.read_text()) for path in (one, other)]
    apart = max(abs(a - b) / a for a, b in zip(*curves, strict=True))
    print(f"the curves are at most {apart:.1e} of their height apart")
    if plot is not None:
        import matplotlib.pyplot as plt

        for curve, path, style in zip(curves, (one, other), ("-", ":"), strict=True):
            plt.semilogy(range(1, len(curve) + 1), curve, style, label=path.stem, linewidth=3)
        plt.xlabel("epoch")
        plt.ylabel("mean squared error")
        plt.title("y = e^x")
        plt.legend()
        plt.savefig(plot, dpi=150)


def main() -> None:
    """Read the flags."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--curve", type=Path, default=Path("curve.json"), help="where the losses go")
    parser.add_argument("--compare", type=Path, nargs=2, metavar="CURVE", help="compare two curves instead")
    parser.add_argument("--plot", type=Path, help="with --compare: draw them (needs matplotlib)")
    flags = parser.parse_args()
    if flags.compare:
        compare(*flags.compare, flags.plot)
    else:
        train(flags.curve)


if __name__ == "__main__":
    main()
