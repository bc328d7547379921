"""Learn y = e^x on a master and two workers that compute the gradients, as people did in 2016.

    tfdist launch --job worker=2 -- python examples/exp_data_parallel.py --plot curves.png

In every step each worker computes the gradients on its part of the batch; the parts differ in size. The
master averages them, weighted by size, and moves its weights. Then it trains the same network alone: both
curves are one.
"""

from typing import Any

import exp_network
import tensorflow as tf

import tfdist

PARTS = (24, 40)  # of a batch of 64


def gradients_of(model: tf.keras.Sequential) -> Any:
    """Make the function that computes the loss on some points, and its gradients."""

    @tf.function
    def gradients(points: Any) -> tuple[tf.Tensor, list[tf.Tensor]]:
        x, y = points
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        return loss, tape.gradient(loss, model.trainable_variables)

    return gradients


def trained(remote: Any | None) -> list[float]:
    """Train on the workers, or without them in this process; give the curve."""
    model = exp_network.built(exp_network.network(), 1)
    optimizer, gradients = exp_network.adam(model), gradients_of(model)

    def step(batch: exp_network.Batch) -> tf.Tensor:
        if remote is None:
            loss, slopes = gradients(tuple(map(tf.convert_to_tensor, batch)))
        else:
            x, y = (tf.split(each, PARTS) for each in batch)
            loss, slopes = remote.reduce("mean", remote.map(gradients, zip(x, y, strict=True), job="worker"))
        optimizer.apply_gradients(zip(slopes, model.trainable_variables, strict=True))
        return loss

    return exp_network.train(step)


def main() -> None:
    """Compute for the master; or be it, and train."""
    flags = exp_network.flags(__doc__)
    cluster = tfdist.ClusterConfig.from_environment()
    if not cluster.is_chief:
        tfdist.serve(cluster)
        return
    with tfdist.connect(cluster) as remote:
        curves = {f"{len(PARTS)} workers": trained(remote), "one process": trained(None)}
    exp_network.compare(curves, flags.plot)


if __name__ == "__main__":
    main()
