"""After `tfdist.start()`, Keras's methods and functions do what they do in one process."""

import subprocess
import sys

SCRIPT = """
import keras
import numpy as np
import tensorflow as tf

import tfdist

strategy = tfdist.start("mirrored", logical_devices=2)
for _ in range(2):
    keras.utils.clear_session() if hasattr(keras.utils, "clear_session") else keras.backend.clear_session()
    assert tf.distribute.get_strategy() is strategy
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
    x = np.arange(6, dtype="float32").reshape(3, 2)
    outputs = model.predict_on_batch(x)
    assert outputs.shape == (3, 1), outputs.shape
    np.testing.assert_allclose(outputs[:, 0], x.sum(1))
    kernel = model.weights[0] if keras.__version__ < "3" else model.weights[0].value
    assert len(strategy.experimental_local_results(kernel)) == 2
assert tfdist.start("mirrored", logical_devices=2) is strategy
try:
    tfdist.start("mirrored", logical_devices=2, stall_timeout="auto")
except tfdist.errors.ConfigError as error:
    assert "has started with other arguments" in str(error), error
    print("done")
"""


def test_the_scope_and_one_batch_are_those_of_one_process() -> None:
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=300)

    assert run.stdout.endswith("done\n"), run.stderr
    assert run.returncode == 0
    assert "Traceback" not in run.stderr
