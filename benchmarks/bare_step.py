"""Measure what no training loop can do without: a forward and backward pass, and a fused update.

    python benchmarks/bare_step.py [--core 1]

One core, one thread, batches of 128 that are there already; 7 times 50 steps. Gradients of biases are
computed apart and memory is kept, as in tfdist's loop. What a step of `benchmarks/single.py` takes beyond
these is what the loop and the input pipeline take.
"""

import argparse
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from results import machine, put, spread, table

from tfdist.launcher.onednn_variables import enable_onednn
from tfdist.strategies.cpu_malloc import keep_memory

MODELS = {"mnist_cnn": (28, 28, 1), "cifar10_cnn": (24, 24, 3)}
BATCH, STEPS, TIMES = 128, 50, 7


def cpu_ms(run: Callable[[], Any]) -> list[float]:
    """Measure the CPU milliseconds of one of the steps that a call takes, in several calls."""
    run()  # traces
    taken = []
    for _ in range(TIMES):
        begun = time.process_time()
        run()
        taken.append(1000 * (time.process_time() - begun) / STEPS)
    return taken


def measured(name: str, shape: tuple[int, int, int]) -> list[str]:
    """Measure a model's passes, and the update of its variables by momentum."""
    import tensorflow as tf

    from tfdist.models.model_by_name import build
    from tfdist.training.keras.steps.bias_gradients import biases_apart

    model = build(name, shape, 10)
    images, labels = tf.random.normal((BATCH, *shape)), tf.zeros(BATCH, tf.int32)
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    variables = [each.value for each in model.trainable_variables]
    means = [tf.Variable(tf.zeros_like(variable)) for variable in variables]
    updates = [tf.fill(each.shape, 1e-3) for each in variables]

    def passes(steps: Any) -> Any:
        used = tf.constant(0.0)
        for _ in tf.range(steps):
            with tf.GradientTape() as tape:
                found = loss(labels, model(images, training=True))
            gradients = biases_apart(tape.gradient(found, variables))
            used += tf.add_n([tf.reshape(each, [-1])[0] for each in gradients])  # else they are left out
        return used

    def momentum(steps: Any) -> None:
        for _ in tf.range(steps):
            for variable, mean, update in zip(variables, means, updates, strict=True):
                tf.raw_ops.ResourceApplyKerasMomentum(
                    var=variable.handle, accum=mean.handle, lr=1e-6, grad=update, momentum=0.9
                )

    graphs = [tf.function(each) for each in (passes, momentum)]
    return [spread(cpu_ms(partial(each, tf.constant(STEPS))), ".1f") for each in graphs]


def main() -> None:
    """Read the flags, bind this process, and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    flags = parser.parse_args()
    os.sched_setaffinity(0, {flags.core})
    os.environ.update({"TF_NUM_INTRAOP_THREADS": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "-1"})
    enable_onednn()
    keep_memory()
    rows = [[f"`{name}`", *measured(name, shape)] for name, shape in MODELS.items()]
    put(
        "bare step",
        f"CPU ms of a step, median and range of {TIMES} times {STEPS}; one of {machine()}.",
        table(("", "forward and backward", "update by momentum"), rows),
    )


if __name__ == "__main__":
    main()
