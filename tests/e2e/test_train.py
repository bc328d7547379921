"""From a config file to a model that a stranger's program can use, by the command that a user types."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFIGS = Path(__file__).parents[2] / "configs"
SHORT = ["--set=data.name=digits", "--set=train.steps_per_epoch=20", "--set=train.epochs=2"]


def train(*arguments, **environ):
    return subprocess.run(
        [sys.executable, "-m", "tfdist.train", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, **environ},
    )


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    return str(tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize("name", ["local", "mirrored", "mwms2w", "ps2w", "ps2w-sync"])
def test_each_shipped_config_trains_and_exports(name, tmp_path, cache):
    run = train(
        "--config", CONFIGS / f"{name}.yaml", "--run_dir", tmp_path / "run", *SHORT, TFDIST_CACHE_DIR=cache
    )
    assert run.returncode == 0, run.stdout + run.stderr
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["steps"] == 40
    assert report["test_accuracy"] > 0.5  # ten classes; 40 steps of 128 are enough for most of the digits
    assert (report["data"], report["substitute_for"]) == ("digits", None)
    latest = tmp_path / "run" / "export" / "latest"
    assert latest.resolve().name == "40"
    assert json.loads((latest / "metadata.json").read_text())["classes"] == [
        str(digit) for digit in range(10)
    ]
    assert f"test accuracy  {report['test_accuracy']:.4f}" in run.stdout
    assert _left_by(tmp_path) == []


def test_a_substitute_is_said_first_and_last(tmp_path, cache):
    config = tmp_path / "x.yaml"
    config.write_text(
        "strategy: {name: one_device}\n"
        f"data: {{name: mnist, dir: {tmp_path}, if_unavailable: digits}}\n"
        "train: {steps_per_epoch: 2}\n"
    )
    run = train("--config", config, "--run_dir", tmp_path / "run", TFDIST_CACHE_DIR=cache)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "ATTENTION: 'digits' was taken in place of 'mnist'" in run.stdout
    assert json.loads((tmp_path / "run" / "report.json").read_text())["substitute_for"] == "mnist"


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("train: {epochs: 0}", [], "{path}:1: train.epochs: expected a whole number >= 1, received 0"),
        ("{}", ["--set=train.epochs=many"], "--set train.epochs=many: train.epochs: expected a whole number, received 'many'"),
        ("{}", ["--set=train.epoch=2"], "--set train.epoch=2: train.epoch: unknown key. Did you mean 'epochs'?"),
        ("{}", ["--set=train"], "--set train: expected name.of.key=value"),
        ("model: {name: mnist_cn}\ndata: {name: digits}", [], "model: there is no 'mnist_cn'"),
        ("data: {name: nosuchset}", [], "nosuchset"),
        ("cluster: {worker: ['127.0.0.1:1', '127.0.0.1:2']}", [], "{path}:1: cluster: gives addresses, but not which of them"),
        ("cluster: {worker: 2}\nstrategy: {name: parameter_server}", [], "worker:"),
    ],
)  # fmt: skip
def test_a_mistake_is_said_and_status_2(tmp_path, cache, text, arguments, message):
    config = tmp_path / "x.yaml"
    config.write_text(text)
    run = train("--config", config, "--run_dir", tmp_path / "run", *arguments, TFDIST_CACHE_DIR=cache)
    assert run.returncode == 2, run.stdout + run.stderr
    assert message.format(path=config) in run.stderr
    assert "Traceback" not in run.stderr
    assert not (tmp_path / "run" / "export").exists()


def test_on_several_machines_each_task_is_started_by_hand(tmp_path, cache):
    from tfdist import ClusterConfig

    cluster = ClusterConfig.local(workers=2)
    config = tmp_path / "x.yaml"
    config.write_text(
        f"cluster: {{worker: {json.dumps(list(cluster.worker))}}}\n"
        "data: {name: digits}\ntrain: {steps_per_epoch: 3}\n"
    )
    told = train("--config", config).stderr
    assert f"--config {config} --task worker:1" in told
    command = [
        sys.executable,
        "-m",
        "tfdist.train",
        "--config",
        str(config),
        "--run_dir",
        str(tmp_path / "run"),
    ]
    environ = {**os.environ, "TFDIST_CACHE_DIR": cache, "TF_NUM_INTRAOP_THREADS": "1"}
    tasks = [
        subprocess.Popen([*command, "--task", f"worker:{i}"], env=environ, stderr=subprocess.PIPE, text=True)
        for i in range(2)
    ]
    try:
        ends = [(task.communicate(timeout=200)[1], task.returncode) for task in tasks]
    finally:
        for task in tasks:
            task.kill()
            task.wait()
    assert [status for _, status in ends] == [0, 0], ends
    assert json.loads((tmp_path / "run" / "report.json").read_text())["steps"] == 3


def _left_by(folder):
    """List the processes that still name a folder on their command line."""
    left = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes()
        except OSError:  # it has just ended
            continue
        if os.fsencode(folder) in words and entry.parent.name != str(os.getpid()):
            left.append(words)
    return left
