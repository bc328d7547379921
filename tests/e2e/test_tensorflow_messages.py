"""TensorFlow prints the messages that docs/troubleshooting.md explains; a new version may change them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from commands import SECONDS
from tfdist.cluster.addresses_and_free_ports import LocalPorts

pytestmark = pytest.mark.slow
PAGE = Path(__file__).parents[2] / "docs/troubleshooting.md"
TABLE = PAGE.read_text().partition("## TensorFlow's own messages")[2]
MESSAGES = re.findall(r"^\| `([^`]+)`", TABLE, re.MULTILINE)

HEAD = """
import os, sys, time
import keras, numpy as np, tensorflow as tf
x, y = np.ones((8, 3), "float32"), np.ones((8, 1), "float32")

def attempt(function):
    try:
        function()
    except Exception as error:
        print(error, flush=True)

def step_outside_of_run(strategy):
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD()
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_weights), model.trainable_weights))

def fit(strategy):
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(x, y, verbose=0)
"""
ONE_PROCESS = """
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
devices = [device.name for device in tf.config.list_logical_devices("CPU")]
one, other = (tf.distribute.MirroredStrategy(devices) for _ in range(2))
with one.scope():
    mean = tf.Variable(1.0, aggregation=tf.VariableAggregation.MEAN)

def of_another():
    with one.scope(), other.scope():
        pass

def made_outside():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    with one.scope():
        model.compile("adam", "mse")
    model.fit(x, y, verbose=0)

for function in (
    of_another,
    made_outside,
    lambda: step_outside_of_run(one),
    lambda: one.run(lambda: tf.function(lambda: mean.assign_add(1.0))()),
    lambda: tf.zeros((1 << 46,)),
):
    attempt(function)
os.environ["TF_CONFIG"] = (
    '{"cluster": {"worker": ["localhost:1", "localhost:2"]}, "task": {"type": "worker", "index": 0}}'
)
attempt(tf.distribute.MultiWorkerMirroredStrategy)
"""
SERVERS = """
names = dict(zip(("worker", "ps", "chief"), sys.argv[1:]))
spec = tf.train.ClusterSpec({job: [address] for job, address in names.items()})
servers = [tf.distribute.Server(spec, job_name=job, protocol="grpc") for job in ("worker", "ps")]
resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
    spec, task_type="chief", task_id=0, rpc_layer="grpc"
)
strategy = tf.distribute.ParameterServerStrategy(resolver)
attempt(lambda: fit(strategy))
attempt(lambda: step_outside_of_run(strategy))
attempt(lambda: tf.distribute.Server(spec, job_name="worker", protocol="grpc"))
os._exit(0)  # servers do not end by themselves
"""
WORKER = """
strategy = tf.distribute.MultiWorkerMirroredStrategy()
attempt(lambda: fit(strategy))
if strategy.cluster_resolver.task_id == 1:
    os._exit(1)
attempt(lambda: strategy.reduce("SUM", strategy.run(lambda: tf.constant(1.0)), axis=None))
os._exit(0)
"""


def start(folder, name, script, *arguments, **environ):
    (folder / f"{name}.py").write_text(HEAD + script)
    with (folder / f"{name}.log").open("w") as log:
        words = [sys.executable, folder / f"{name}.py", *arguments]
        told = {"TF_CPP_MIN_LOG_LEVEL": "0", "CUDA_VISIBLE_DEVICES": "-1" if name != "one" else "", **environ}
        return subprocess.Popen(words, stdout=log, stderr=log, env={**os.environ, **told})


@pytest.fixture
def printed(tmp_path):
    """Return what TensorFlow prints in scripts with these mistakes."""
    folder, reserved = tmp_path, LocalPorts(5)
    addresses = [f"localhost:{port}" for port in reserved.ports]
    started = [start(folder, "one", ONE_PROCESS), start(folder, "servers", SERVERS, *addresses[:3])]
    for index in range(2):
        task = {"cluster": {"worker": addresses[3:]}, "task": {"type": "worker", "index": index}}
        started.append(start(folder, f"worker{index}", WORKER, TF_CONFIG=json.dumps(task)))
    try:
        for process in started:
            process.wait(SECONDS)
    finally:
        for process in started:
            process.kill()
            process.wait()
    del reserved  # which kept other processes from the ports
    return "\n".join(path.read_text() for path in sorted(folder.glob("*.log")))


def test_tensorflow_prints_each(printed):
    assert len(MESSAGES) > 10
    assert [message for message in MESSAGES if message not in printed] == [], printed[-3000:]
