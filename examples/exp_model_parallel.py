"""Learn y = e^x by a network whose layers are on two tasks, as people did in 2016.

    tfdist launch --job layers=2 -- python examples/exp_model_parallel.py --plot curves.png

Task 0 holds the first two layers, task 1 the last two, with the optimizer's variables beside them. What the
first ones say goes from task to task, and so does, on the way back, the gradient. Then the chief trains the
same network alone: both curves are one.
"""

import contextlib
from typing import Any

import exp_network
import tensorflow as tf

import tfdist


def trained(lower_place: Any, upper_place: Any) -> list[float]:
    """Train with the lower layers at one place and the upper ones at another; give the curve."""
    layers = exp_network.network()
    with lower_place():
        lower = exp_network.built(layers[:2], 1)
        lower_optimizer = exp_network.adam(lower)
    with upper_place():
        upper = exp_network.built(layers[2:], exp_network.UNITS)
        upper_optimizer = exp_network.adam(upper)
    weights = [each.trainable_variables[0] for each in (lower, upper)]
    # Keras 3 has variables of its own around those of TensorFlow.
    places = [getattr(each, "device", "") or each.value.device for each in weights]
    print(f"the layers are on {places[0]} and {places[1]}")

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with lower_place(), tf.GradientTape() as lower_tape:
            between = lower(x)
        with upper_place():
            with tf.GradientTape() as upper_tape:
                upper_tape.watch(between)
                loss = tf.reduce_mean((upper(between) - y) ** 2)
            # Gradients are computed at the place of the block in which they are asked for.
            slopes, back = upper_tape.gradient(loss, (upper.trainable_variables, between))
            upper_optimizer.apply_gradients(_pairs(slopes, upper))
        with lower_place():
            slopes = lower_tape.gradient(between, lower.trainable_variables, output_gradients=back)
            lower_optimizer.apply_gradients(_pairs(slopes, lower))
        return loss

    return exp_network.train(lambda batch: step(*map(tf.convert_to_tensor, batch)))


@tf.autograph.experimental.do_not_convert  # AutoGraph of TensorFlow 2.12 has a zip of its own, without strict
def _pairs(slopes: list[tf.Tensor], model: tf.keras.Sequential) -> list[tuple[tf.Tensor, Any]]:
    return list(zip(slopes, model.trainable_variables, strict=True))


def main() -> None:
    """Compute for the chief; or be it, and train."""
    flags = exp_network.flags(__doc__)
    cluster = tfdist.ClusterConfig.from_environment()
    if not cluster.is_chief:
        tfdist.serve(cluster)
        return
    with tfdist.connect(cluster) as remote:
        together = trained(lambda: remote.device("layers", 0), lambda: remote.device("layers", 1))
        alone = trained(contextlib.nullcontext, contextlib.nullcontext)
    exp_network.compare({"layers on 2 tasks": together, "one process": alone}, flags.plot)


if __name__ == "__main__":
    main()
