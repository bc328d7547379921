"""A cluster continues without a lost worker and admits it when it joins, with the same numbers."""

import json
import os
import time

import numpy as np
import pytest

from commands import python, start_tfdist, tfdist_forked
from tfdist import ClusterConfig
from tfdist.cluster.addresses_and_free_ports import is_free, split_address

SECONDS = 400
# A step waits while there is a checkpoint of the name in the file `hold`; what it computes has no randomness and no
# moving averages.
MODEL = """
from pathlib import Path
import tensorflow as tf
HOLD = str(Path(__file__).with_name("hold"))
class Held(tf.keras.layers.Layer):
    def call(self, x, training=False):
        if not training:
            return x
        # In the graph, for a worker beside ps tasks runs no Python. The name depends on the count, or TensorFlow
        # would look once, when it optimizes the graph, and hold no step or each for ever.
        def is_held(count):
            nothing = tf.strings.substr(tf.strings.as_string(count), 0, 0)
            return tf.size(tf.io.matching_files(tf.io.read_file(tf.strings.join([HOLD, nothing])))) > 0
        looks = tf.while_loop(is_held, lambda count: (count + 1,), (tf.constant(0),))
        with tf.control_dependencies(looks):
            return tf.identity(x)
def build(image_shape, classes):
    layers = [tf.keras.layers.Rescaling(1 / 255), tf.keras.layers.Flatten(), Held()]
    return tf.keras.Sequential([tf.keras.Input(image_shape), *layers, tf.keras.layers.Dense(classes)])
"""
# Six steps an epoch; three workers cannot share 50 examples evenly.
CONFIG = """
data: {name: DATA, batch_size: 50}
model: {name: held:build}
train: {epochs: 30, optimizer: momentum, learning_rate: 0.05}
strategy: {precision: float64}
checkpoint: {every: 2, keep: 999}
evaluation: {every: 180}
"""
ELASTIC = "elastic: {min_workers: 2, join_timeout: 20}\n"


@pytest.fixture
def folder(tmp_path):
    random = np.random.default_rng(0)
    arrays = {
        name: array
        for split, count in (("train", 300), ("test", 40))
        for name, array in (
            (f"x_{split}", random.integers(0, 256, (count, 4, 4, 1), np.uint8)),
            (f"y_{split}", random.integers(0, 3, count)),
        )
    }
    np.savez(tmp_path / "data.npz", **arrays)
    (tmp_path / "held.py").write_text(MODEL)
    (tmp_path / "one.yaml").write_text(CONFIG.replace("DATA", str(tmp_path / "data.npz")))
    return tmp_path


class Tasks:
    """Start and kill the tasks of a cluster as somebody would by hand."""

    def __init__(self, folder, strategy, **shape):
        self.folder, self.cluster, self.processes = folder, ClusterConfig.local(**shape), {}
        roles = {role: list(getattr(self.cluster, role)) for role in ("chief", "worker", "ps")}
        section = f"cluster: {json.dumps(roles)}\n"
        config = (folder / "one.yaml").read_text().replace("strategy: {", f"strategy: {{name: {strategy}, ")
        (folder / "many.yaml").write_text(section + config + ELASTIC)

    def start(self, name):
        words, environ = command(self.folder, "many"), environment(self.folder)
        self.processes[name] = start_tfdist(*words, "--task", name, output=self.log(name), **environ)

    def log(self, name):
        return self.folder / f"{name}.log"

    def logs(self):
        """Return what each task's log says of tfdist, without what TensorFlow adds; pytest prints all of it."""
        logs = {each.stem: each.read_text().splitlines() for each in sorted(self.folder.glob("*.log"))}
        return "\n".join(
            f"{task}: {line}" for task, lines in logs.items() for line in lines if line.startswith("tfdist")
        )

    def kill(self, name):
        self.processes.pop(name).kill()

    def until(self, condition, what):
        end = time.monotonic() + SECONDS
        while not condition():
            ended = {name: each.poll() for name, each in self.processes.items() if each.poll() is not None}
            assert time.monotonic() < end, f"{what} has not come:\n{self.logs()}"
            assert not ended, f"{ended} ended before {what}:\n{self.logs()}"
            time.sleep(0.05)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes.values():
            process.kill()


def command(folder, name):
    return ["train", "--config", folder / f"{name}.yaml", "--run_dir", folder / name]


def environment(folder):
    paths = [str(folder), os.environ.get("PYTHONPATH", "")]
    return {
        "PYTHONPATH": os.pathsep.join(paths),
        "TFDIST_CACHE_DIR": str(folder / "cache"),
        "TF_NUM_INTRAOP_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "-1",
    }


def variables(folder):
    import tensorflow as tf

    reader = tf.train.load_checkpoint(str(folder / "checkpoints" / "180" / "variables"))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


@pytest.mark.slow
@pytest.mark.usefixtures("forking")
@pytest.mark.parametrize(
    ("strategy", "shape"),
    [
        ("multi_worker_mirrored", {"workers": 3}),
        pytest.param("parameter_server_sync", {"workers": 3, "ps": 1}, marks=pytest.mark.again),
    ],
)
def test_a_worker_goes_for_good_and_another_comes(folder, strategy, shape):
    steps = lambda: {int(each.name) for each in (folder / "many" / "checkpoints").glob("[0-9]*")}  # noqa: E731

    def hold_after(step):
        """Stop before the next step as soon as there is a checkpoint of this step."""
        (folder / "next").write_text(str(folder / "many" / "checkpoints" / str(step)))
        (folder / "next").replace(folder / "hold")

    hold_after(4)
    with Tasks(folder, strategy, **shape) as tasks:
        for task in tasks.cluster.tasks():
            tasks.start(str(task))
        tasks.until(lambda: 4 in steps(), "the first checkpoints of three")
        tasks.kill("worker:1")
        lead = tasks.log("chief:0" if tasks.cluster.chief else "worker:0")
        without = (
            f"continuing with {len(tasks.processes)} of {len(tasks.processes) + 1} tasks, without worker:1"
        )
        tasks.until(lambda: without in lead.read_text(), "two go on")
        assert "worker:2 is worker:1 now" in lead.read_text()
        saved = max(steps())
        hold_after(saved + 2)
        tasks.until(lambda: max(steps()) > saved, "the first checkpoint of two")
        alone = max(steps())
        tasks.start("worker:1")
        port = split_address(tasks.cluster.worker[1])[1]
        tasks.until(lambda: not is_free(port), "the new worker listens")
        joined = f"worker:1 at {tasks.cluster.worker[1]} has joined: restarting"

        def has_joined():
            since = lead.read_text().rpartition(without)[2]
            # On a busy machine TensorFlow may lose the other of the two. They restart too, now with the new one.
            return joined in since or "3 replicas in sync" in since

        while not has_joined():  # a few steps at a time: a busy machine may hear it late
            before = max(steps())
            hold_after(before + 2)
            tasks.until(lambda: has_joined() or max(steps()) > before, "the next checkpoint")  # noqa: B023
            time.sleep(1)
        hold_after(0)  # of which there is none
        ends = {name: each.wait(SECONDS) for name, each in tasks.processes.items()}
        logs = tasks.logs()
    assert set(ends.values()) == {0}, f"{ends}:\n{logs}"
    report = json.loads((folder / "many" / "report.json").read_text())
    assert report["steps"] == 180
    assert report["starts"] >= 3  # more, where a slow machine lets somebody come after `join_timeout`
    assert saved < alone <= report["begun_at_step"] < 180
    alone_run = tfdist_forked(*command(folder, "one"), **environment(folder))
    assert alone_run.returncode == 0, alone_run.stderr
    expected, received = variables(folder / "one"), variables(folder / "many")
    assert expected.keys() == received.keys()
    for name, value in expected.items():
        # Keras computes losses in float32: the sums of three parts, or two, and of the whole differ by so much.
        # An example too many or too few in one step would change them by more than 1e-4.
        np.testing.assert_allclose(received[name], value, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_beginning_anew_without_getting_on_has_an_end():
    code = (
        "from tfdist.cluster.config import ClusterConfig\n"
        "from tfdist.trainer.config import Config\n"
        "from tfdist.trainer.sections.starting_and_watching_tasks import ElasticSection, LaunchSection\n"
        "from tfdist.trainer.elastic import Elastic\n"
        "from tfdist.errors import TaskLost\n"
        "print('begun', flush=True)\n"
        "config = Config(elastic=ElasticSection(), launch=LaunchSection(restarts=1))\n"
        "elastic = Elastic(config, config.elastic, ClusterConfig(worker=('127.0.0.1:2',), task=('worker', 0)))\n"
        "elastic.restart(TaskLost('worker:1', 'is gone'))\n"
    )
    run = python("-c", code)
    assert (run.returncode, run.stdout) == (138, "begun\nbegun\n"), run.stderr
    assert run.stderr.count("worker:1: is gone: restarting from the last checkpoint") == 1
    assert run.stderr.splitlines()[-1] == "tfdist: worker:1: is gone"
