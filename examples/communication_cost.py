"""Estimate what mirrored workers spend on the exchange of gradients, and measure it.

    tfdist launch --workers 2 -- python examples/communication_cost.py

The workers first train alone, both at once: that is what a step takes without an exchange. Two threads of
each measure this machine's loopback. From these numbers a simulation, that of `tfdist simulate`, estimates
what a step takes with the exchange, and how many bytes a worker sends; then the workers train together, and
that is measured.
"""

import argparse
import socket
import threading
import time
from typing import Any

import tensorflow as tf

import tfdist
from tfdist.simulation.forecast import forecast
from tfdist.simulation.setup import Compute, Exchange, Network, Setup

INPUTS, UNITS, BATCH = 784, 1024, 128  # a batch: of one worker


def make_dataset(context: tf.distribute.InputContext) -> tf.data.Dataset:
    """Make data that cost nothing."""
    return tf.data.Dataset.from_tensors((tf.zeros((BATCH, INPUTS)), tf.zeros(BATCH, tf.int32))).repeat()


def compiled_model() -> Any:
    """Make a model."""
    layers = tf.keras.layers
    hidden = [layers.Dense(UNITS, "relu") for _ in range(2)]
    model = tf.keras.Sequential([tf.keras.Input((INPUTS,)), *hidden, layers.Dense(10)])
    model.compile("sgd", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def seconds_of_a_step(model: Any, strategy: Any, steps: int) -> float:
    """Train, once to trace and once to measure."""
    for _ in range(2):
        began = time.monotonic()
        tfdist.fit(model, make_dataset, strategy=strategy, steps_per_epoch=steps, verbose=0)
    return (time.monotonic() - began) / steps


def loopback(size: int = 1 << 26, turns: int = 200) -> Network:
    """Measure a connection with this machine itself."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = socket.create_connection(server.getsockname())
        there, _ = server.accept()

    def answer() -> None:
        for _ in range(turns):
            there.sendall(there.recv(1))
        there.sendall(bytes(size))

    with here, there:
        thread = threading.Thread(target=answer)
        thread.start()
        began = time.monotonic()
        for _ in range(turns):
            here.sendall(b"?")
            here.recv(1)
        answered, left = time.monotonic(), size
        while left:
            left -= len(here.recv(1 << 20))
        seconds = time.monotonic() - answered
        thread.join()
    return Network(bytes_per_second=size / seconds, latency=(answered - began) / turns / 2)


def main() -> None:
    """Train alone and together; estimate, as the chief, and say how far apart both are."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps
    cluster = tfdist.ClusterConfig.from_environment()
    strategy = tfdist.make_strategy(cluster, "multi_worker_mirrored", communication={"implementation": "tcp"})
    alone = seconds_of_a_step(compiled_model(), tf.distribute.get_strategy(), steps)
    network = loopback()
    with strategy.scope():
        model = compiled_model()
    with tfdist.Traffic(strategy) as traffic:
        together = seconds_of_a_step(model, strategy, steps)
    if not cluster.is_chief:
        return
    estimated = forecast(
        Setup(
            strategy="multi_worker_mirrored",
            compute=Compute(seconds_per_example=alone / BATCH, batch_size=BATCH),
            exchange=Exchange(dense_bytes=4 * model.count_params(), overlap=False),
            network=network,
        ),
        cluster.size("worker"),
    )
    step = BATCH * estimated.workers / estimated.examples_per_second
    sent = estimated.bytes_per_second * step / estimated.workers
    (measured,) = traffic.bytes_sent.values() or (float("nan"),)
    print(
        f"a step alone: {1e3 * alone:.1f} ms; loopback: {network.bytes_per_second / 1e9:.1f} GB/s,"
        f" {1e6 * network.latency:.0f} µs"
    )
    print("| | estimated | measured |\n|---|---|---|")
    print(f"| a step, ms | {1e3 * step:.1f} | {1e3 * together:.1f} |")
    print(f"| of it the exchange, ms | {1e3 * (step - alone):.1f} | {1e3 * (together - alone):.1f} |")
    print(f"| bytes that a worker sends in a step | {sent:.0f} | {measured / steps / 2:.0f} |")


if __name__ == "__main__":
    main()
