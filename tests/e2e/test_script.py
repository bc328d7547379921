"""A script with `tfdist.start()` at its head, as its author runs it: alone and by `tfdist launch`."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import keras
import numpy as np
import pytest

from commands import SECONDS, script_forked
from tfdist.cluster.config import ClusterConfig, Task
from tfdist.diagnostics.report.page import write_page

ROOT = Path(__file__).parents[2]
_SCRIPT = """
import keras
import numpy as np
import tfdist

strategy = tfdist.start()
import tensorflow as tf

keras.utils.set_random_seed(1)
x = np.linspace(-1, 1, 64, dtype=np.float32).reshape(16, 4)
data = tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1))).batch(8)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "relu"), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1), "mse")
best = keras.callbacks.ModelCheckpoint("best.keras")  # which the chief alone writes
tfdist.fit(model, data, epochs=2, callbacks=[best], verbose=0)
tfdist.save(model, "saved/model.keras")
tfdist.save(model, "saved/served")
restored = keras.models.load_model("saved/model.keras")
print("equal", all(np.array_equal(*pair) for pair in zip(model.get_weights(), restored.get_weights())), flush=True)
if tfdist.is_chief():
    print("chief", type(strategy).__name__, flush=True)
tfdist.barrier()
"""
_MISTAKE = "tfdist.fit(model, data, epochs=-1)\n"
_LONG = "tfdist.fit(model, data.repeat(), epochs=10_000, steps_per_epoch=100, verbose=0)\n"


def _command(script, *launch):
    task = [sys.executable, str(script)]
    if not launch:
        return task
    return [sys.executable, "-m", "tfdist", "launch", *launch, f"--run_dir={script.parent}", "--", *task]


def _written(folder, text):
    script = folder / "script.py"
    script.write_text(text)
    return script


def test_a_script_is_ended_by_one_line_and_status_2(tmp_path):
    script = _written(tmp_path, _SCRIPT + _MISTAKE)
    run = subprocess.run(_command(script), cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert run.returncode == 2, run.stderr
    assert run.stdout.split("\n")[:2] == ["equal True", "chief OneDeviceStrategy"]
    line = len((_SCRIPT + _MISTAKE).splitlines())
    assert run.stderr.rstrip().endswith(f"received -1 ({script}, line {line})")
    assert "Traceback" not in run.stderr
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == ["model.keras", "served"]
    assert keras.models.load_model(tmp_path / "saved" / "model.keras").predict(
        np.ones((1, 4)), verbose=0
    ).shape == (1, 1)


def _script_of(page):
    return re.search(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL).group(1)


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md", "docs/script.md"])
def test_the_script_of_the_page_runs(page, tmp_path, monkeypatch, forking):
    script = _written(tmp_path, _script_of(page))
    monkeypatch.chdir(tmp_path)
    run = script_forked(script)
    assert run.returncode == 0, run.stderr
    assert (tmp_path / "model.keras").exists()


@pytest.mark.slow
def test_two_machines_by_hand_are_started_as_the_page_says(tmp_path):
    page = (ROOT / "docs/script.md").read_text()
    section = page.partition("## Two machines by hand")[2].partition("\n## ")[0]
    config = re.search(r"```yaml\n(.*?)```", section, re.DOTALL).group(1)
    cluster = ClusterConfig.local(workers=2)  # two addresses of this machine
    for index in range(2):
        config = config.replace(f"10.0.0.{index + 1}:2222", cluster.address(Task("worker", index)))
    (tmp_path / "cluster.yaml").write_text(config)
    _written(tmp_path, _script_of("docs/script.md"))
    secret, task, check, script = re.findall(r"\n\n((?:    .+\n)+)", section)
    assert _typed([re.sub("scp .*", "", secret)], tmp_path) == [(0, "")]
    assert (tmp_path / "tfdist.secret").stat().st_mode & 0o777 == 0o600
    for commands, wanted in ((check, "ok       secret"), (script, "")):
        tasks = [task.replace("worker:0", f"worker:{index}") for index in range(2)]
        for status, output in _typed([task + commands for task in tasks], tmp_path):
            assert status == 0, output
            assert wanted in output
    assert (tmp_path / "model.keras").exists()


def _typed(texts, folder):
    """Return the status and the output of shells that run at the same time; none of their processes stays."""
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    outputs = [folder / f"output-{index}" for index in range(len(texts))]
    shells = []
    try:
        for text, output in zip(texts, outputs, strict=True):
            with output.open("w") as file:
                shell = subprocess.Popen(
                    ["bash", "-euc", text],
                    cwd=folder,
                    env=environ,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            shells.append(shell)
        statuses = [shell.wait(SECONDS) for shell in shells]
    finally:
        for shell in shells:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
    return [(status, output.read_text()) for status, output in zip(statuses, outputs, strict=True)]


def test_mirrored_workers_share_a_script_and_end_at_once_on_ctrl_c(tmp_path):
    script = _written(tmp_path, _SCRIPT + "print('training', flush=True)\n" + _LONG)
    command = _command(script, "--workers=2", "--threads=1", "--network_isolation=never")
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as launch:
        try:
            shown = []
            for line in launch.stdout:
                shown.append(line)
                if sum("training" in said for said in shown) == 2:
                    break
            time.sleep(1)  # into the steps, in whose exchanges the main threads wait
            launch.send_signal(signal.SIGINT)
            shown += launch.stdout.readlines()
        finally:
            launch.terminate()
    text = "".join(shown)
    assert launch.returncode == 130, text
    assert text.count("equal True") == 2
    assert text.count("chief MultiWorkerMirrored") == 1
    assert "network_isolation is 'never'" in text
    assert "had to be killed" not in text
    assert "has not called tfdist" not in text
    assert sorted(os.listdir(tmp_path / "saved")) == ["model.keras", "served"]


def test_tasks_that_serve_end_with_a_script_of_one_line_more(tmp_path):
    script = _written(tmp_path, _SCRIPT)
    command = _command(script, "--workers=1", "--ps=1", "--heartbeat_timeout=60")
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("[chief:0] equal True") == 1
    assert run.stdout.count("chief ParameterServer") == 1
    assert "WARNING: the script" not in run.stderr


@pytest.mark.slow
def test_mirrored_workers_wait_for_one_that_stands_still_for_as_long_as_the_script_says(tmp_path):
    standstill = """
import os
import subprocess

class Standstill(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 0 and not tfdist.is_chief():
            subprocess.Popen(["sh", "-c", f"kill -STOP {os.getpid()}; sleep 13; kill -CONT {os.getpid()}"])

tfdist.fit(model, data.repeat(), epochs=3, steps_per_epoch=100, callbacks=[Standstill()], verbose=0)
"""
    script = _written(
        tmp_path, _SCRIPT.replace("tfdist.start()", "tfdist.start(heartbeat_timeout=60)") + standstill
    )
    run = subprocess.run(
        _command(script, "--workers=2"), cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("equal True") == 2


def test_each_fit_of_a_script_leaves_a_timeline_that_the_launch_and_the_page_name(tmp_path):
    script = _written(tmp_path, _SCRIPT + "tfdist.fit(model, data, epochs=2, verbose=0)\n")
    environ = {**os.environ, "TFDIST_PROFILE": "2:3"}
    command = _command(script, "--workers=1")
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, env=environ)
    assert run.returncode == 0, run.stdout + run.stderr
    files = [f"timeline/timeline{number}.json.gz" for number in ("", "-2")]
    assert [(tmp_path / file).exists() for file in files] == [True, True]
    shown = [line.split()[1] for line in run.stdout.splitlines() if line.startswith("timeline ")]
    assert shown == files
    assert f"{', '.join(files)}, for ui.perfetto.dev" in write_page([tmp_path]).read_text()


def test_a_launch_says_that_its_tasks_have_nothing_to_do_with_each_other(tmp_path):
    script = _written(tmp_path, "print('alone')")
    command = [*_command(script, "--workers=2", "--threads=1", "--restarts=2"), "--my_token=abc", "--lr=1"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0
    shown = f"launch --workers=2 --ps=0 --threads=1 --restarts=2 -- {sys.executable} {script}"
    page = write_page([tmp_path]).read_text()
    assert f"tfdist {shown} &#x27;--my_token=***&#x27; --lr=1" in page
    assert not any(
        "abc" in path.read_text() for path in (tmp_path / "events.jsonl", tmp_path / "report.html")
    )
    assert "WARNING: the script has not called tfdist" in run.stderr
    assert "Begin it with tfdist.start()" in run.stderr
    last = run.stdout.splitlines()[-4:]
    assert re.fullmatch(r"time +\d+ s", last[0]), last
    assert [line.split(maxsplit=1)[1] for line in last[1:]] == [
        "logs",
        "report.html",
        "tfdist report . OTHER_RUN",
    ]
