"""`CheckpointAndResume` in scripts whose processes are killed and told to end: they continue at the exact step."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from commands import script_forked

_SCRIPT = """
import hashlib
import json
import os
import signal
import time
from pathlib import Path

task = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {"type": "alone", "index": 0})
Path(f"pid-{task['type']}-{task['index']}").write_text(str(os.getpid()))

import keras
import numpy as np

import tfdist

dtype = os.environ.get("DTYPE", "float32")
by_int8 = {"communication": {"implementation": "tcp", "dtype": "int8"}} if dtype == "int8" else {}
tfdist.start(os.environ.get("STRATEGY", "auto"), **by_int8)
import tensorflow as tf

keras.utils.set_random_seed(1)
x = np.random.default_rng(0).normal(size=(88, 6)).astype("float32")
y = (x.sum(axis=1) > 0).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(88, seed=4).batch(8)


class Examples(keras.metrics.Metric):
    def __init__(self, name="examples"):
        super().__init__(name=name)
        self.total = self.add_weight(shape=(), initializer="zeros", name="total")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign(self.total + keras.ops.cast(keras.ops.shape(y_true)[0], "float32"))

    def result(self):
        return self.total + 0.0


class Disturb(keras.callbacks.Callback):
    steps = 0

    def get_state(self):
        return {"steps": self.steps}

    def set_state(self, state):
        self.steps = state["steps"]

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1
        Path("steps").open("a").write(f"{self.steps}\\n") if tfdist.is_chief() else None
        kill, at = os.environ.get("KILL", ":0").split(":")
        if tfdist.is_chief() and self.steps == int(at) and not Path("killed").exists():
            Path("killed").touch()
            os.kill(int(Path(f"pid-{kill}").read_text()), signal.SIGKILL)
        if Path("killed").exists() and os.environ.get("SLOW"):
            time.sleep(0.5)


def made():
    layers = [keras.Input((6,)), keras.layers.Dense(16, "relu"), keras.layers.BatchNormalization()]
    model = keras.Sequential([*layers, keras.layers.Dropout(0.3), keras.layers.Dense(1, "sigmoid")])
    metrics = ["accuracy", "auc", Examples()]
    model.compile(keras.optimizers.Adam(0.05), "binary_crossentropy", metrics=metrics)
    return model


model = made()
disturb = Disturb()
callbacks = [
    disturb,
    keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=0.5),
    keras.callbacks.EarlyStopping("val_loss", patience=9, restore_best_weights=True),
    tfdist.CheckpointAndResume("checkpoints", every=4),
]
if os.environ.get("DATA") == "arrays":
    tf.random.set_seed(None)
    history = model.fit(x, y, batch_size=8, epochs=5, callbacks=callbacks, verbose=0, validation_split=0.2)
elif os.environ.get("DATA") == "steps":
    options = {"steps_per_epoch": 7, "epochs": 8, "callbacks": callbacks, "verbose": 0}
    some = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(88, seed=5).batch(8).take(3)
    history = model.fit(data, validation_data=some, **options)
else:
    history = model.fit(data, epochs=5, callbacks=callbacks, verbose=0, validation_data=(x[:20], y[:20]))
weights = model.get_weights()
if tfdist.is_chief():
    result = {
        "history": history.history,
        "epochs": history.epoch,
        "iterations": int(model.optimizer.iterations.numpy()),
        "steps": disturb.steps,
        "weights": hashlib.sha256(b"".join(weight.tobytes() for weight in weights)).hexdigest(),
    }
    Path("result.json").write_text(json.dumps(result, default=float))
"""


def _launched(folder: Path, *options: str, told_to_end: bool = False, **environ: str) -> tuple[int, str]:
    """Run the script as a cluster; tell the launcher to end once the cluster has trained again after a kill."""
    folder.mkdir(exist_ok=True)
    script = folder / "script.py"
    script.write_text(_SCRIPT)
    launch = [sys.executable, "-m", "tfdist", "launch", "--threads=1", "--network_isolation=never", *options]
    command = [*launch, f"--run_dir={folder}", "--", sys.executable, str(script)]
    log = folder / "launch.log"
    # JAX, which other tests of this process may load, sets the variable, so that TensorFlow logs tracebacks.
    environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", **environ}
    with log.open("w") as output:
        process = subprocess.Popen(command, cwd=folder, env=environ, stdout=output, stderr=output)
        try:
            if told_to_end:
                _wait_until_resumed(folder, process)
                process.send_signal(signal.SIGTERM)
            status = process.wait(600)
        finally:
            process.terminate()
            process.wait(60)
    return status, log.read_text()


def _wait_until_resumed(folder: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait until the cluster has resumed, and has done two steps more."""
    end, at_resume, steps = time.monotonic() + 400, None, folder / "steps"
    while time.monotonic() < end and process.poll() is None:
        done = len(steps.read_text().split()) if steps.exists() else 0
        if at_resume is None and "fit: resuming at step" in (folder / "launch.log").read_text():
            at_resume = done
        if at_resume is not None and done >= at_resume + 2:
            return
        time.sleep(0.1)
    pytest.fail((folder / "launch.log").read_text()[-4000:])


def _result(folder: Path) -> dict[str, object]:
    return dict(json.loads((folder / "result.json").read_text()))


@pytest.mark.parametrize("data", ["arrays", pytest.param("steps", marks=pytest.mark.slow)])
def test_one_process_that_is_killed_twice_ends_with_the_bits_of_one_that_is_not(
    tmp_path, monkeypatch, forking, data
):
    results = []
    for name, kills in (("undisturbed", [""]), ("disturbed", ["alone-0:6", "alone-0:30", ""])):
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.chdir(folder)
        script = folder / "script.py"
        script.write_text(_SCRIPT)
        for kill in kills:
            Path("killed").unlink(missing_ok=True)
            run = script_forked(script, KILL=kill or ":0", DATA=data)
            assert (run.returncode == 0) == (not kill), run.stderr
        results.append(_result(folder))
    assert "fit: resuming at step 28, in epoch" in run.stderr
    assert results[0] == results[1]
    assert script_forked(script, DATA=data).stderr.count("fit: nothing is left to train") == 1
    assert _result(folder) == results[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "tasks", "dtype"),
    [
        # With int8, the rounding errors of the last step are a part of the state.
        ("multi_worker_mirrored", ["--workers=2"], "int8"),
        pytest.param("multi_worker_mirrored", ["--workers=2"], "float32", marks=pytest.mark.again),
        # Its state is saved and read by the same parts of `fit`.
        pytest.param("parameter_server_sync", ["--workers=2", "--ps=1"], "float32", marks=pytest.mark.again),
    ],
)
def test_a_cluster_that_is_killed_and_told_to_end_has_the_bits_of_one_that_is_not(
    tmp_path, strategy, tasks, dtype
):
    undisturbed = {"STRATEGY": strategy, "DTYPE": dtype}
    status, log = _launched(tmp_path / "undisturbed", *tasks, **undisturbed)
    assert status == 0, log
    folder = tmp_path / "disturbed"
    disturbed = {**undisturbed, "KILL": "worker-1:18"}
    status, log = _launched(folder, *tasks, "--restarts=3", told_to_end=True, SLOW="1", **disturbed)
    assert status == 138, log
    # The chief misses the killed worker, or is told first to end with it, and saves one of the next steps.
    assert re.search(r"fit: resuming at step 1[6-9], in epoch 2", log)
    assert "a task was told to end; all is saved at step" in log
    assert "Traceback" not in log
    status, log = _launched(folder, *tasks, **disturbed)
    assert status == 0, log
    assert _result(folder) == _result(tmp_path / "undisturbed")


@pytest.mark.slow
@pytest.mark.again  # tests/faults/test_schedule.py kills such workers, and the cluster above resumes
def test_asynchronous_workers_count_each_example_once(tmp_path):
    tasks, disturbed = ["--workers=2", "--ps=1"], {"STRATEGY": "parameter_server", "KILL": "chief-0:18"}
    status, log = _launched(tmp_path, *tasks, "--restarts=3", told_to_end=True, SLOW="1", **disturbed)
    assert status == 138, log
    assert "fit: resuming at step 16, in epoch 2" in log
    assert "Traceback" not in log
    status, log = _launched(tmp_path, *tasks, **disturbed)
    assert status == 0, log
    result = _result(tmp_path)
    assert result["iterations"] == result["steps"] == 55
    assert result["epochs"] == [0, 1, 2, 3, 4]
    assert result["history"]["examples"] == [88.0] * 5
