"""Measure what no training loop can do without: a forward and backward pass, and Adam's fused update.

    python benchmarks/bare_step.py [--core 1]

One core, one thread, batches of 128 that are there already; 7 times 50 steps. What a step of
`benchmarks/single.py` takes beyond these is what the loop and the input pipeline take.
"""

import argparse
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from results import machine, put, spread

from tfdist import onednn

MODEL, SHAPE = "mnist_cnn", (28, 28, 1)
BATCH, STEPS, TIMES = 128, 50, 7


def cpu_ms(run: Callable[[], Any]) -> list[float]:
    """Give the CPU time of one of the steps that a call takes, time after time."""
    run()  # traces
    taken = []
    for _ in range(TIMES):
        begun = time.process_time()
        run()
        taken.append(1000 * (time.process_time() - begun) / STEPS)
    return taken


def main() -> None:
    """Read the flags, bind this process, and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    flags = parser.parse_args()
    os.sched_setaffinity(0, {flags.core})
    os.environ.update({"TF_NUM_INTRAOP_THREADS": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "-1"})
    onednn.ask_for()
    import tensorflow as tf

    from tfdist.models import build

    model = build(MODEL, SHAPE, 10)
    images, labels = tf.random.normal((BATCH, *SHAPE)), tf.zeros(BATCH, tf.int32)
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    variables = [each.value for each in model.trainable_variables]
    means, squares = ([tf.Variable(tf.zeros_like(each)) for each in variables] for _ in range(2))
    updates = [tf.fill(each.shape, 1e-3) for each in variables]

    def passes(steps: Any) -> Any:
        used = tf.constant(0.0)
        for _ in tf.range(steps):
            with tf.GradientTape() as tape:
                found = loss(labels, model(images, training=True))
            gradients = tape.gradient(found, variables)
            used += tf.add_n([tf.reshape(each, [-1])[0] for each in gradients])  # else they are left out
        return used

    def adam(steps: Any) -> None:
        rates = {"beta1_power": 0.9, "beta2_power": 0.99, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-7}
        for _ in tf.range(steps):
            for variable, mean, square, update in zip(variables, means, squares, updates, strict=True):
                tf.raw_ops.ResourceApplyAdam(
                    var=variable.handle, m=mean.handle, v=square.handle, lr=1e-6, grad=update, **rates
                )

    graphs = [tf.function(each) for each in (passes, adam)]
    both, update = (spread(cpu_ms(partial(each, tf.constant(STEPS))), ".1f") for each in graphs)
    put(
        "bare step",
        f"CPU ms of `{MODEL}`, median and range of {TIMES} times {STEPS} steps; one of {machine()}: the"
        f" forward and backward pass {both}, Adam's update {update}.",
    )


if __name__ == "__main__":
    main()
