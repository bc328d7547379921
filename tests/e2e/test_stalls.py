"""A task that answers but makes no progress is named, shows its stacks, and the run ends all the same."""

import json
import os
import re
from pathlib import Path

import pytest

from commands import start_script, start_tfdist

HERE = Path(__file__).parent
STEPS = 40
CLUSTERS = {
    "one_device": {},
    "multi_worker_mirrored": {"worker": 2},
    "parameter_server": {"chief": 1, "worker": 2, "ps": 1},
    "parameter_server_sync": {"chief": 1, "worker": 2, "ps": 1},
}
pytestmark = pytest.mark.usefixtures("forking")


def config(strategy, **train):
    cluster = CLUSTERS[strategy]
    of_cluster = {"cluster": cluster, "launch": {"threads": 1}} if cluster else {}
    return {
        **of_cluster,
        "strategy": {"name": strategy},
        "data": {"name": "digits", "batch_size": 32},
        "model": {"name": "stalling:build"},
        "train": {"steps": STEPS, "learning_rate": 0.01, **train},
        "evaluation": {"batches": 2},
        "checkpoint": {"every": 10},
        "watch": {"stall_timeout": 15},
    }


class Training:
    """One `tfdist train` of a config, in a folder."""

    def __init__(self, folder, written, cache, **environ):
        self.run = folder / "run"
        self._path, self._output = folder / "config.yaml", folder / "output"
        self._path.write_text(json.dumps(written))
        self._output.touch()
        paths = [str(HERE), os.environ.get("PYTHONPATH", "")]
        self._environ = {
            "TFDIST_CACHE_DIR": str(cache),
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            **environ,
        }

    def start(self):
        words = ("train", "--config", self._path, "--run_dir", self.run)
        return start_tfdist(*words, output=self._output, **self._environ)

    def ended(self):
        """Run it to its end, and return its exit status."""
        process = self.start()
        try:
            return process.wait()
        finally:
            process.kill()

    @property
    def printed(self):
        return self._output.read_text()

    def log(self, task):
        return (self.run / "logs" / f"{task.replace(':', '-')}.log").read_text()

    def report(self):
        return json.loads((self.run / "report.json").read_text())

    def events(self, kind):
        events = map(json.loads, (self.run / "events.jsonl").read_text().splitlines())
        return [event for event in events if event["event"] == kind]


def with_sleeper(strategy, task, folder, cache):
    """Return the training of a config whose callback sleeps in one task; it has not run yet."""
    sleeper = {"name": "stalling:sleeper", "folder": str(folder), "task": task}
    return Training(folder, config(strategy, callbacks=[sleeper]), cache)


def ended_through_gate(strategy, folder, cache):
    """Train on data that wait at a gate in the first life of a task; return the training, and its exit status."""
    gate = folder / "gate"
    training = Training(folder, config(strategy), cache, STALLING_GATE=str(gate))
    os.mkfifo(gate)
    gate.with_name(f"{gate.name}.open").touch()
    return training, training.ended()


def stuck_lines(text):
    return [line.partition("is stuck: it has been ")[2] for line in text.splitlines() if "is stuck: " in line]


def is_stuck(line, doing, limit=15):
    """Return whether a line says so of what a task does; on a busy machine it is noticed later."""
    said = rf"{re.escape(doing)} for \d+ s, and the limit \(stall_timeout\) is {limit} s"
    return re.match(said, line) is not None


@pytest.mark.slow
def test_a_process_that_is_stuck_in_a_callback_ends_and_continues_when_started_again(tmp_path, cache):
    training = with_sleeper("one_device", "this:0", tmp_path, cache)
    assert training.ended() == 138, training.printed
    [line] = stuck_lines(training.printed)
    assert is_stuck(line, "in the on_train_batch_end of its callbacks"), line
    assert "stalling.py" in training.printed  # the stack
    assert "Traceback" not in training.printed
    [event] = training.events("task_stalled")
    assert (event["task"], event["doing"]) == ("this process", "in the on_train_batch_end of its callbacks")
    assert training.ended() == 0, training.printed
    report = training.report()
    assert (report["steps"], report["begun_at_step"], report["starts"]) == (STEPS, 10, 2)


SCRIPT = """
import time
import numpy as np
import tfdist
strategy = tfdist.start(stall_timeout=10)
import tensorflow as tf

class Sleeper(tf.keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 5:
            time.sleep(100_000)

model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
x = np.ones((64, 4), np.float32)
model.fit(x, x[:, :1], batch_size=8, verbose=0)
time.sleep(12)  # between two calls of fit it may do what it likes
print("trains again", flush=True)
model.fit(x, x[:, :1], batch_size=8, verbose=0, callbacks=[Sleeper()])
"""


@pytest.mark.slow
def test_a_script_that_is_stuck_in_fit_ends_where_it_asks_for_that(tmp_path):
    script, output = tmp_path / "script.py", tmp_path / "output"
    script.write_text(SCRIPT)
    process = start_script(script, output=output)
    try:
        assert process.wait() == 138, output.read_text()
    finally:
        process.kill()
    printed = output.read_text()
    assert "trains again\n" in printed
    [line] = stuck_lines(printed)
    assert is_stuck(line, "in the on_train_batch_end of its callbacks", limit=10), line
    assert 'script.py", line 11 in on_train_batch_end' in printed


@pytest.mark.slow
@pytest.mark.again
def test_a_process_whose_data_do_not_arrive_ends(tmp_path, cache):
    training, status = ended_through_gate("one_device", tmp_path, cache)
    assert status == 138, training.printed
    [line] = stuck_lines(training.printed)
    assert is_stuck(line, "in a training step (reading its data, or computing)"), line
    assert training.ended() == 0, training.printed
    assert training.report()["steps"] == STEPS


@pytest.mark.slow
def test_the_mirrored_worker_whose_data_do_not_arrive_is_named_and_not_the_one_that_waits(tmp_path, cache):
    training, status = ended_through_gate("multi_worker_mirrored", tmp_path, cache)
    assert status == 0, training.printed
    [line] = stuck_lines(training.log("worker:1"))
    assert is_stuck(line, "in a training step (reading its data, or computing)"), line
    assert stuck_lines(training.log("worker:0")) == []
    assert "starting all tasks again (restart 1 of 3)" in training.printed
    report = training.report()
    assert (report["steps"], report["begun_at_step"], report["starts"]) == (STEPS, 0, 2)


@pytest.mark.slow
@pytest.mark.again
def test_the_mirrored_worker_that_is_stuck_in_a_callback_is_named(tmp_path, cache):
    training = with_sleeper("multi_worker_mirrored", "worker:1", tmp_path, cache)
    assert training.ended() == 0, training.printed
    [line] = stuck_lines(training.log("worker:1"))
    assert is_stuck(line, "in the on_train_batch_end of its callbacks"), line
    assert stuck_lines(training.log("worker:0")) == []
    report = training.report()
    assert (report["steps"], report["begun_at_step"], report["starts"]) == (STEPS, 10, 2)


@pytest.mark.slow
def test_the_asynchronous_worker_whose_data_do_not_arrive_is_started_again_alone(tmp_path, cache):
    training, status = ended_through_gate("parameter_server", tmp_path, cache)
    assert status == 0, training.printed
    [line] = stuck_lines(training.log("worker:1"))
    assert line.startswith("at work on one execution (reading its data, or computing) for ")
    assert "_wait_until_gone" in training.log("worker:1")  # the stacks
    assert [event["task"] for event in training.events("task_stalled")] == ["worker:1"]
    assert "starting worker:1 again, alone (restart 1 of 3)" in training.printed
    report = training.report()
    assert (report["steps"], report["begun_at_step"], report["starts"]) == (STEPS, 0, 1)


@pytest.mark.slow
@pytest.mark.again
@pytest.mark.parametrize("strategy", ["parameter_server", "parameter_server_sync"])
def test_the_chief_that_is_stuck_in_a_callback_ends_and_all_start_again(strategy, tmp_path, cache):
    training = with_sleeper(strategy, "chief:0", tmp_path, cache)
    assert training.ended() == 0, training.printed
    [line] = stuck_lines(training.log("chief:0"))
    assert is_stuck(line, "in the on_train_batch_end of its callbacks"), line
    assert [event["task"] for event in training.events("task_stalled")] == ["chief:0"]
    assert "starting all tasks again (restart 1 of 3)" in training.printed
    report = training.report()
    assert (report["steps"], report["starts"]) == (STEPS, 2)


@pytest.mark.slow
@pytest.mark.again
def test_the_chief_of_synchronous_workers_whose_data_do_not_arrive_ends(tmp_path, cache):
    training, status = ended_through_gate("parameter_server_sync", tmp_path, cache)
    assert status == 0, training.printed
    [line] = stuck_lines(training.log("chief:0"))
    assert is_stuck(line, "in a training step (reading its data, or computing)"), line
    assert training.report()["steps"] == STEPS
