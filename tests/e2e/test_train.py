"""From a config file to a model that a stranger's program can use, by the command that a user types."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFIGS = Path(__file__).parents[2] / "configs"
SHORT = ["--set=data.name=digits", "--set=train.steps=40"]


def train(*arguments, **environ):
    return subprocess.run(
        [sys.executable, "-m", "tfdist.train", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=900,
        env={**os.environ, **environ},
    )


@pytest.mark.parametrize(
    "name",
    [
        "mwms2w",
        "ps2w",
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("local", "mirrored", "ps2w-sync")),
    ],
)
def test_each_shipped_config_trains_and_exports(name, tmp_path, cache):
    folder = tmp_path / "run"
    run = train("--config", CONFIGS / f"{name}.yaml", "--run_dir", folder, *SHORT, TFDIST_CACHE_DIR=cache)
    assert run.returncode == 0, run.stdout + run.stderr
    report = json.loads((folder / "report.json").read_text())
    assert report["steps"] == 40
    assert report["test_accuracy"] > 0.5  # ten classes; 40 steps of 128 are enough for most of the digits
    assert (report["data"], report["substitute_for"]) == ("digits", None)
    latest = folder / "export" / "latest"
    assert latest.resolve().name == "40"
    assert json.loads((latest / "metadata.json").read_text())["classes"] == [
        str(digit) for digit in range(10)
    ]
    assert [each.name for each in (folder / "checkpoints").iterdir()] == ["40"]
    assert f"test accuracy  {report['test_accuracy']:.4f}" in run.stdout
    workers = ["this process"] if name in ("local", "mirrored") else ["worker:0", "worker:1"]
    timed = {f"milliseconds of a step/{worker}" for worker in workers}
    assert _curves(folder, "train") == {"loss", "accuracy", "examples per second", "learning rate", *timed}
    assert _curves(folder, "test") > {"loss", "accuracy"}
    assert _left_by(tmp_path) == []
    words = [sys.executable, "-m", "tfdist.predict", "--model", folder, "--input", "digits", "--output"]
    asked = subprocess.run(
        [*words, tmp_path / "answers.csv"],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "TFDIST_CACHE_DIR": cache},
    )
    assert asked.returncode == 0, asked.stderr
    assert f"accuracy  {report['test_accuracy']:.4f} on 10000" in asked.stderr


@pytest.mark.parametrize(
    "name",
    [
        "cifar10-ps2w",
        *(
            pytest.param(f"cifar10-{each}", marks=pytest.mark.slow)
            for each in ("local", "mirrored", "mwms2w", "ps2w-sync")
        ),
    ],
)
def test_smoke_does_a_little_of_everything(name, tmp_path, cache):
    folder = tmp_path / "run"
    run = train(
        "--config",
        CONFIGS / f"{name}.yaml",
        "--smoke",
        "--set=data.name=shapes",
        "--set=export.formats=[keras, tflite]",
        "--run_dir",
        folder,
        TFDIST_CACHE_DIR=cache,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert json.loads((folder / "report.json").read_text())["steps"] == 4
    assert sorted(each.name for each in (folder / "checkpoints").iterdir()) == ["2", "4"]
    exported = {each.name for each in (folder / "export" / "latest").iterdir()}
    assert {"saved_model.pb", "model.keras", "model.tflite", "metadata.json"} <= exported
    assert {each.name for each in (folder / "summaries").iterdir()} == {"train", "test"}


def test_dry_run_checks_everything_and_trains_nothing(tmp_path, cache):
    folder = tmp_path / "run"
    options = [
        "--config",
        CONFIGS / "ps2w.yaml",
        "--set=data.name=digits",
        "--set=train.epochs=3",
        "--run_dir",
        folder,
    ]
    run = train(*options, "--dry_run", TFDIST_CACHE_DIR=cache)
    assert run.returncode == 0, run.stderr
    assert "epochs: 3" in run.stdout
    assert "4 tasks, from" in run.stdout
    assert "data      digits: 60000 images to train on, 10000 to test on, 28x28x1, 10 classes" in run.stdout
    assert "steps     1404 of 128 examples; 468 are an epoch" in run.stdout
    assert not folder.exists()
    wrong = train(*options, "--dry_run", "--set=model.options={drop_out: 0.1}", TFDIST_CACHE_DIR=cache)
    assert wrong.returncode == 2
    assert "Its options: dropout" in wrong.stderr


# By seven steps, in calls of three: a checkpoint comes in the middle of an epoch and after a shorter call.
# (A cosine would know how long the run was to be.)
STOPPED = ["--set=data.name=digits", "--set=train.schedule=constant", "--set=evaluation.batches=2", "--set=checkpoint.every=7", "--set=train.steps_per_execution=3"]  # fmt: skip


@pytest.mark.parametrize(
    "name",
    ["local", *(pytest.param(each, marks=pytest.mark.slow) for each in ("mirrored", "mwms2w", "ps2w-sync"))],
)
def test_a_run_that_was_stopped_goes_on_to_the_same_bits(name, tmp_path, cache):
    def run(folder, steps):
        done = train(
            "--config",
            CONFIGS / f"{name}.yaml",
            "--run_dir",
            tmp_path / folder,
            *STOPPED,
            f"--set=train.steps={steps}",
            TFDIST_CACHE_DIR=cache,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    run("straight", 20)
    run("stopped", 14)
    checkpoints = tmp_path / "stopped" / "checkpoints"
    with (checkpoints / "14" / "variables.index").open("ab") as torn:
        torn.write(b"x")
    told = run("stopped", 20)
    assert "variables.index is damaged; taking the one before" in told
    assert "going on at step 7 of 20" in told
    assert json.loads((tmp_path / "stopped" / "report.json").read_text())["begun_at_step"] == 7
    one, other = (_variables(tmp_path / each / "checkpoints" / "20") for each in ("straight", "stopped"))
    assert len(one) > 20  # weights, slots of Adam, its count of steps, the state of dropout
    assert one == other
    if name != "local":
        return
    told = train(
        "--config",
        CONFIGS / f"{name}.yaml",
        "--run_dir",
        tmp_path / "stopped",
        *STOPPED,
        "--set=train.seed=1",
        TFDIST_CACHE_DIR=cache,
    )
    assert told.returncode == 2
    assert "was trained with train.seed 0, but now it is 1" in told.stderr


def _curves(folder, name):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "summaries" / name))
    events.Reload()
    return set(events.Tags()["tensors"])


def _variables(folder):
    import tensorflow as tf

    reader = tf.train.load_checkpoint(str(folder / "variables"))
    return {name: reader.get_tensor(name).tobytes() for name in reader.get_variable_to_shape_map()}


def test_an_evaluator_evaluates_each_checkpoint_and_ends(tmp_path, cache):
    config = tmp_path / "x.yaml"
    config.write_text(
        "cluster: {worker: 2, evaluator: 1}\ndata: {name: digits}\nevaluation: {batches: 2}\n"
        "launch: {threads: 1, isolate: never}\n"
        "train: {steps: 6}\ncheckpoint: {every: 2}\n"
    )
    run = train("--config", config, "--run_dir", tmp_path / "run", TFDIST_CACHE_DIR=cache)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "1 thread each" in run.stdout
    assert "WARNING: no private network (isolate is 'never')" in run.stdout
    for step in (2, 4, 6):
        assert f"[evaluator:0] tfdist: step {step}: loss" in run.stdout
    assert list((tmp_path / "run" / "summaries" / "evaluator").iterdir())
    assert _left_by(tmp_path) == []


def test_a_substitute_is_said_first_and_last(tmp_path, cache):
    config = tmp_path / "x.yaml"
    config.write_text(
        "strategy: {name: one_device}\n"
        f"data: {{name: mnist, dir: {tmp_path}, if_unavailable: digits}}\n"
        "train: {steps: 2}\n"
    )
    run = train("--config", config, "--run_dir", tmp_path / "run", TFDIST_CACHE_DIR=cache)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "ATTENTION: 'digits' was taken in place of 'mnist'" in run.stdout
    assert "ATTENTION: 'digits' is taken in place of 'mnist'" in run.stderr
    for file in ("report.json", "export/latest/metadata.json"):
        assert json.loads((tmp_path / "run" / file).read_text())["substitute_for"] == "mnist"


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
        "data: {name: digits}\ntrain: {steps: 3}\n"
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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ps2w", "mirrored"])
@pytest.mark.skipif("TFDS_DATA_DIR" not in os.environ, reason="TFDS_DATA_DIR names no folder with MNIST")
def test_three_epochs_of_mnist_give_98_and_a_half_percent(name, tmp_path, cache):
    run = train(
        "--config",
        CONFIGS / f"{name}.yaml",
        "--set=train.epochs=3",
        "--set=data.if_unavailable=fail",
        "--run_dir",
        tmp_path / "run",
        TFDIST_CACHE_DIR=cache,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert json.loads((tmp_path / "run" / "report.json").read_text())["test_accuracy"] >= 0.985


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
