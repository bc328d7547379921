"""The clock on the wall may be set at any time: nothing is decided by it."""

import ast
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from harms import Clock, ClockSet
from proofs import prove_exact, prove_nothing_left
from setups import config
from training import Training

import tfdist

SOURCE = Path(tfdist.__file__).parent
# What time.strftime gives is a part of names, for people.
OF_THE_WALL = {"time", "time_ns", "localtime", "gmtime", "ctime", "now", "utcnow", "today", "st_mtime", "st_ctime", "getmtime"}  # fmt: skip


# Records for people have the time of the day, the doctor compares the clocks of the tasks, and TensorFlow's profiler
# counts by the time of the day, so that timelines of several machines are compared by it too. Kubernetes says by it
# when a pod should be gone.
FOR_PEOPLE = {
    "engines/kubernetes/engine_base.py",
    "launcher/kubeflow_progress.py",
    "launcher/run_events.py",
    "diagnostics/doctor/protocol.py",
    "profiling/cluster_recording.py",
    "profiling/tensorflow_profiler.py",
    "profiling/timeline_file.py",
}


def test_no_module_reads_the_clock_on_the_wall():
    found = []
    for file in SOURCE.rglob("*.py"):
        if str(file.relative_to(SOURCE)) in FOR_PEOPLE:
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            is_field = isinstance(node, ast.Attribute) and node.attr == "time" != ast.unparse(node.value)
            if isinstance(node, ast.Attribute) and node.attr in OF_THE_WALL and not is_field:
                found.append(f"{file.relative_to(SOURCE)}:{node.lineno}: {ast.unparse(node)}")
    assert found == []


IDLE = """
import sys, tensorflow as tf, tfdist
cluster = tfdist.ClusterConfig.from_tf_config()
if cluster.task.type == "worker":
    tfdist.serve(cluster)
else:
    with tfdist.connect(cluster):
        with tf.device("/job:worker/task:0"):
            variable = tf.Variable(5.0)
        print("made", flush=True)
        sys.stdin.readline()
        print(variable.numpy(), flush=True)
"""


@pytest.mark.faults
def test_a_server_whose_clock_is_set_forward_keeps_its_variables(tmp_path):
    """TensorFlow's servers look every second who has not called them for long."""
    if why := ClockSet.why_not():
        pytest.skip(why)
    clock = Clock(tmp_path)
    cluster = tfdist.ClusterConfig.local(1, chief=1)

    def begun(task):
        config = {"TF_CONFIG": cluster.tf_config_json(task), "CUDA_VISIBLE_DEVICES": "-1"}
        environ = {**os.environ, **clock.environ, **config}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        return subprocess.Popen([sys.executable, "-c", IDLE], env=environ, text=True, **pipes)

    with begun("worker") as worker, begun("chief") as chief:
        try:
            assert chief.stdout.readline() == "made\n"
            clock.set(86_400.0)
            time.sleep(3)
            told, _ = chief.communicate("\n", timeout=400)
            assert told == "5.0\n"
            assert worker.wait(400) == 0
        finally:
            chief.kill()
            worker.kill()


JUMPING = """
import random, time
_real, _chance = time.time, random.Random(0)
time.time = lambda: _real() + _chance.choice((-86_400.0, 0.0, 86_400.0))
"""


@pytest.mark.faults
def test_a_clock_that_jumps_by_days_makes_no_difference(tmp_path, cache):
    (tmp_path / "sitecustomize.py").write_text(JUMPING)
    with Training(tmp_path, config("parameter_server_sync"), cache) as training:
        training.environ["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{training.environ['PYTHONPATH']}"
        training.start()
        assert training.end() == 0, training.tail()
    assert len(training.history()) == 1
    prove_exact(training, 2)
    prove_nothing_left(training)
