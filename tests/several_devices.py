"""Run the tests of a file on one device, and again on two in another process.

TensorFlow fixes a process's devices once.
"""

import os
from pathlib import Path

import pytest.__main__
import tensorflow as tf

from again import again
from commands import script_forked
from tfdist.strategies.strategy_classes import Mirrored

__all__ = ["HAS_SEVERAL", "WITH_AGAIN", "own_strategy", "run_on_several"]

_VARIABLE = "TFDIST_TEST_SEVERAL_DEVICES"
HAS_SEVERAL = _VARIABLE in os.environ
WITH_AGAIN = [(), again(("-m", "again"))]  # the words to run tests with that are marked so, too
if HAS_SEVERAL:
    _cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(_cpu, [tf.config.LogicalDeviceConfiguration()] * 2)


def own_strategy():
    """Return the strategy of this process's devices."""
    if HAS_SEVERAL:
        return Mirrored(["/cpu:0", "/cpu:1"], tf.distribute.ReductionToOneDevice())
    return tf.distribute.OneDeviceStrategy("/device:CPU:0")


def run_on_several(file, words=()):
    """Run the tests of a file in a process with two devices, and assert that they pass; it needs `forking`."""
    run = script_forked(Path(pytest.__main__.__file__), "-q", "-n", "0", *words, file, **{_VARIABLE: "1"})
    assert run.returncode == 0, run.stdout
    assert " passed" in run.stdout
