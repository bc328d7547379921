"""From a config file to a model that a stranger's program can use, by the command that a user types."""

import functools
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import proc
from again import AGAIN
from commands import SECONDS, python, start_script, start_tfdist, tfdist_forked
from curves import curve

CONFIGS = Path(__file__).parents[2] / "configs"
IN_THIS_PROCESS = ("local", "mirrored", "cifar10-local")  # these configs have no cluster
pytestmark = pytest.mark.usefixtures("forking")


def train(*arguments, **environ):
    """Train as a user does."""
    return python("-m", "tfdist.train", *arguments, **environ)


def train_config(name, *arguments, **environ):
    """Train with a shipped config; what trains in one process needs not load TensorFlow for it."""
    run = functools.partial(tfdist_forked, "train") if name in IN_THIS_PROCESS else train
    return run("--config", CONFIGS / f"{name}.yaml", *arguments, **environ)


# In calls of three, with checkpoints at every seventh: one comes in the middle of an epoch, after a shorter call.
# (A cosine would know how long the run was to be.)
STEPS = ["--set=data.name=digits", "--set=train.schedule=constant", "--set=checkpoint.every=7", "--set=train.steps_per_execution=3"]  # fmt: skip


@pytest.fixture(scope="session")
def straight(tmp_path_factory, cache, once):
    """Return what came of a shipped config's run of some steps, which each config does once.

    That of `local` is evaluated on some images alone, but where the test asks for all.
    """

    def run(name, steps=20, *, on_all=False):
        folder = tmp_path_factory.mktemp(name) / "run"
        options = ["--run_dir", folder, *STEPS, f"--set=train.steps={steps}"]
        is_short = name == "local" and not on_all
        options += ["--set=evaluation.batches=2"] if is_short else []

        def trained():
            run = train_config(name, *options, TFDIST_CACHE_DIR=cache)
            return run.returncode, run.stdout, run.stderr, str(folder)

        *ended, folder_of_run = once(f"straight-{name}-{steps}-{is_short}", trained)
        return subprocess.CompletedProcess(name, *ended), Path(folder_of_run)

    return run


@pytest.mark.parametrize(
    "name",
    [
        "ps2w",
        # Others train with these configs below, and predict with exports of each strategy.
        *(pytest.param(each, marks=AGAIN) for each in ("local", "mirrored", "mwms2w", "ps2w-sync")),
    ],
)
def test_each_shipped_config_trains_and_exports(name, straight, tmp_path, cache):
    run, folder = straight(name, on_all=True)
    assert run.returncode == 0, run.stdout + run.stderr
    report = json.loads((folder / "report.json").read_text())
    assert report["steps"] == 20
    assert report["test_accuracy"] > 0.3  # ten classes; after 20 steps of 128
    assert (report["data"], report["substitute_for"]) == ("digits", None)
    assert report["config"]["train"]["steps"] == 20
    assert "engine" not in report["config"]  # its variables may be secrets
    latest = folder / "export" / "latest"
    assert latest.resolve().name == "20"
    assert json.loads((latest / "metadata.json").read_text())["classes"] == [
        str(digit) for digit in range(10)
    ]
    assert sorted(each.name for each in (folder / "checkpoints").iterdir() if each.is_dir()) == [
        "14",
        "20",
        "7",
    ]
    assert f"test accuracy  {report['test_accuracy']:.4f}" in run.stdout
    assert f"report         {folder / 'report.html'}\n" in run.stdout
    page = (folder / "report.html").read_text()
    assert f"<dt>Test accuracy</dt><dd>{round(100 * report['test_accuracy'], 2):g} %</dd>" in page
    assert '<p class="state done">done</p>' in page
    assert page.count("data:image/png") == 24  # of the surest mistakes
    workers = ["this process"] if name in ("local", "mirrored") else ["worker:0", "worker:1"]
    senders = {"ps2w": ["chief:0", "ps:0", "worker:0", "worker:1"], "mwms2w": ["worker:0"]}
    if sys.platform.startswith("linux"):  # whose kernel tells
        assert sorted(report["bytes_sent_per_step"]) == senders.get(name.removesuffix("-sync"), [])
    timed = {f"milliseconds of a step/{worker}" for worker in workers}
    assert _curves(folder, "train") == {"loss", "accuracy", "examples per second", "learning rate", *timed}
    assert _curves(folder, "test") > {"loss", "accuracy"}
    assert proc.naming(folder) == []
    asked = _predict(folder, "digits", tmp_path / "answers.csv", cache)
    assert asked.returncode == 0, asked.stderr
    assert f"accuracy  {report['test_accuracy']:.4f} on 10000" in asked.stderr


@pytest.mark.slow
@pytest.mark.again  # the configs for MNIST do the same above, and tests/e2e/test_own_objects.py takes a model by --smoke
@pytest.mark.parametrize("name", ["cifar10-local", "cifar10-ps2w", "cifar10-fast"])
def test_smoke_does_a_little_of_everything(name, tmp_path, cache):
    folder = tmp_path / "run"
    formats = "[keras, tflite]" if name == "cifar10-local" else "[]"
    data = "cifar10" if "TFDS_DATA_DIR" in os.environ else "shapes"
    run = train_config(
        name,
        "--smoke",
        f"--set=data.name={data}",
        "--set=data.if_unavailable=fail",
        f"--set=export.formats={formats}",
        "--run_dir",
        folder,
        TFDIST_CACHE_DIR=cache,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    report = json.loads((folder / "report.json").read_text())
    assert (report["steps"], report["data"]) == (4, data)
    assert sorted(each.name for each in (folder / "checkpoints").iterdir() if each.is_dir()) == ["2", "4"]
    exported = {each.name for each in (folder / "export" / "latest").iterdir()}
    files = {"model.keras", "model.tflite"} if name == "cifar10-local" else set()
    assert {"saved_model.pb", "metadata.json", *files} <= exported
    assert {each.name for each in (folder / "summaries").iterdir()} == {"train", "test"}
    asked = _predict(folder, data, tmp_path / "answers.csv", cache)
    assert asked.returncode == 0, asked.stderr
    assert re.search(r"accuracy  0\.\d+ on \d+", asked.stderr)


def test_dry_run_checks_everything_and_trains_nothing(tmp_path, cache):
    folder = tmp_path / "run"
    options = ["--config", CONFIGS / "ps2w.yaml", "--set=data.name=digits", "--set=train.epochs=3"]
    options += ["--run_dir", folder, "--dry_run"]
    run = tfdist_forked("train", *options, TFDIST_CACHE_DIR=cache)
    assert run.returncode == 0, run.stderr
    assert "epochs: 3" in run.stdout
    assert "4 tasks, from" in run.stdout
    assert "data      digits: 60,000 images to train on, 10,000 to test on, 28x28x1, 10 classes" in run.stdout
    assert "steps     1,404 of 128 examples; 468 are an epoch" in run.stdout
    assert not folder.exists()
    for change, message in (
        ("model.options={drop_out: 0.1}", "Its options: dropout"),
        ("strategy.device=gpu", "device: is gpu, but TensorFlow finds no GPU on this machine"),
        ("strategy.name=multi_worker_mirrored", "has no work under multi_worker_mirrored"),
    ):
        environ = {"TFDIST_CACHE_DIR": cache, "CUDA_VISIBLE_DEVICES": "-1"}
        wrong = tfdist_forked("train", *options, f"--set={change}", **environ)
        assert wrong.returncode == 2, wrong.stdout
        assert message in wrong.stderr


@pytest.mark.parametrize(
    "name",
    [
        "local",
        # tests/faults/test_schedule.py tears a checkpoint of mirrored workers, who go on to the same bits.
        *(pytest.param(each, marks=AGAIN) for each in ("mirrored", "mwms2w", "ps2w-sync")),
    ],
)
def test_a_run_that_was_stopped_goes_on_to_the_same_bits(name, straight, tmp_path, cache):
    options = ["--run_dir", tmp_path, *STEPS, "--set=evaluation.batches=2"]
    options += ["--set=checkpoint.background=true"]  # not so the run that it is compared with

    def run(steps, *more):
        return train_config(name, *options, f"--set=train.steps={steps}", *more, TFDIST_CACHE_DIR=cache)

    stopped = run(14)
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr
    with (tmp_path / "checkpoints" / "14" / "variables.index").open("ab") as torn:
        torn.write(b"x")
    resumed = run(20)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    told = resumed.stdout + resumed.stderr
    assert "variables.index is damaged; using the checkpoint before it" in told
    assert "resuming at step 7 of 20" in told
    assert json.loads((tmp_path / "report.json").read_text())["begun_at_step"] == 7
    one, other = (_variables(each / "checkpoints" / "20") for each in (straight(name)[1], tmp_path))
    assert len(one) > 20  # weights, slots of Adam, its count of steps, the state of dropout
    assert one == other
    if name == "local":
        refused = run(20, "--set=train.seed=1")
        assert refused.returncode == 2
        assert "was trained with train.seed 0, but now it is 1" in refused.stderr


@pytest.mark.slow
def test_a_run_in_shards_goes_on_with_other_shards_to_the_same_bits(tmp_path, cache):
    config = tmp_path / "shards.yaml"
    config.write_text(
        "cluster: {worker: 2, ps: 2}\nstrategy: {name: parameter_server_sync, min_shard_bytes: 4096}\n"
        "data: {name: digits, batch_size: 64}\ntrain: {steps: 6, optimizer: adam, schedule: constant}\n"
        "evaluation: {batches: 2}\n"
    )

    def run(name, *changes):
        options = ["--run_dir", tmp_path / name, *(f"--set={change}" for change in changes)]
        found = train("--config", config, *options, TFDIST_CACHE_DIR=cache)
        assert found.returncode == 0, found.stdout + found.stderr
        return found.stdout + found.stderr

    run("resumed", "train.steps=3")
    assert "resuming at step 3 of 6" in run("resumed", "cluster.ps=3")
    run("straight")
    ours, theirs = (
        sorted(_variables(tmp_path / name / "checkpoints" / "6").values()) for name in ("resumed", "straight")
    )
    assert len(ours) > 20  # weights and slots
    assert ours == theirs


def search_path(folder):
    """Return PYTHONPATH with a folder of the test's modules before its own."""
    return os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))


def start_train(config, *arguments, output, **environ):
    """Start training, printing to a file; what trains in one process needs not load TensorFlow for it."""
    words = ["train", "--config", str(config), *map(str, arguments)]
    if config.stem in IN_THIS_PROCESS:
        return start_tfdist(*words, output=output, **environ)
    with output.open("w") as file:
        command = [sys.executable, "-m", "tfdist", *words]
        return subprocess.Popen(command, env={**os.environ, **environ}, stdout=file, stderr=file)


@pytest.mark.skipif(sys.platform != "linux", reason="looks for tasks in /proc")
@pytest.mark.parametrize(
    ("name", "told", "status", "number"),
    [
        ("local", None, 138, signal.SIGTERM),
        pytest.param("local", None, 138, signal.SIGINT, marks=AGAIN),
        pytest.param("local", None, 138, signal.SIGHUP, marks=AGAIN),
        pytest.param("mwms2w", None, 138, signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param("mwms2w", "worker:1", 0, signal.SIGTERM, marks=AGAIN),
        pytest.param("ps2w-sync", None, 138, signal.SIGTERM, marks=AGAIN),
        pytest.param("ps2w-sync", "ps:0", 0, signal.SIGTERM, marks=AGAIN),
        pytest.param("ps2w-sync", "worker:1", 0, signal.SIGTERM, marks=AGAIN),
    ],
)
def test_told_to_end_it_saves_everything(name, told, status, number, straight, tmp_path, cache):
    """By a signal to the launcher, or to one task, after which the launcher starts all of them again."""
    folder, printed = tmp_path / "run", tmp_path / "printed"
    steps = 20
    held = f"--set=train.callbacks=[{{name: stalling:held, folder: {tmp_path}}}]"
    options = ["--run_dir", folder, *STEPS, f"--set=train.steps={steps}", "--set=evaluation.batches=2", held]
    environ = {"TFDIST_CACHE_DIR": cache, "PYTHONPATH": search_path(Path(__file__).parent)}
    (tmp_path / "hold").touch()
    running = start_train(CONFIGS / f"{name}.yaml", *options, output=printed, **environ)

    def until(condition):
        while not condition():
            assert running.poll() is None, printed.read_text()
            time.sleep(0.02)

    def is_told():  # if it is a server's, the chief looks for the notice once a second
        return (tmp_path / "told").exists() or f"{told} was told to end: saving" in printed.read_text()

    try:
        until((tmp_path / "held").exists)
        os.kill(proc.task_of(folder, told) if told else running.pid, number)
        until(is_told)
        (tmp_path / "hold").unlink()
        assert running.wait(SECONDS) == status, printed.read_text()
    finally:
        running.kill()
        running.wait()
    saved = sorted(int(each.name) for each in (folder / "checkpoints").iterdir() if each.name.isdigit())
    said = "SIGINT: saving a checkpoint, then ending" in printed.read_text()
    assert said == (number == signal.SIGINT)
    if status:
        assert f"all is saved at step {saved[-1]} of {steps}" in printed.read_text()
        assert train_config(name, *options, **environ).returncode == 0
    report = json.loads((folder / "report.json").read_text())
    assert 3 <= report["begun_at_step"] < steps
    assert (report["starts"], report["steps_lost"], report["steps"]) == (2, 0, steps)
    one, other = (
        _variables(each / "checkpoints" / str(steps)) for each in (straight(name, steps)[1], folder)
    )
    assert one == other
    assert proc.naming(tmp_path) == []


@pytest.mark.parametrize(("restarts", "status"), [(1, 0), pytest.param(0, 138, marks=AGAIN)])
def test_a_killed_worker_costs_the_steps_since_the_last_checkpoint(restarts, status, tmp_path, cache):
    """A model whose first life on worker 1 ends by SIGKILL at step 5, between two checkpoints."""
    (tmp_path / "dying.py").write_text(
        "import json, os, signal\n"
        "from pathlib import Path\n"
        "import tensorflow as tf\n"
        "class Dying(tf.keras.layers.Layer):\n"
        "    def call(self, x, training=False):\n"
        "        if training:\n"
        "            tf.py_function(die, [], [])\n"
        "        return x\n"
        "calls = 0\n"
        "def die():\n"
        "    global calls\n"
        "    calls += 1\n"
        f"    mark = Path({str(tmp_path)!r}, 'died')\n"
        "    task = json.loads(os.environ.get('TF_CONFIG', '{}')).get('task', {})\n"
        "    if task.get('index') == 1 and calls == 5 and not mark.exists():\n"
        "        mark.touch()\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "def build(image_shape, classes):\n"
        "    layers = [tf.keras.layers.Rescaling(1 / 255), tf.keras.layers.Flatten(), Dying()]\n"
        "    return tf.keras.Sequential([tf.keras.Input(image_shape), *layers, tf.keras.layers.Dense(classes)])\n"
    )
    run = train(
        "--config",
        CONFIGS / "mwms2w.yaml",
        "--set=data.name=digits",
        "--set=model.name=dying:build",
        "--set=train.steps=8",
        "--set=checkpoint.every=2",
        "--set=evaluation.batches=2",
        f"--set=launch.restarts={restarts}",
        "--run_dir",
        tmp_path / "run",
        TFDIST_CACHE_DIR=cache,
        PYTHONPATH=search_path(tmp_path),
    )
    assert run.returncode == status, run.stdout + run.stderr
    assert "worker:1 exited with -9 (SIGKILL" in run.stdout
    if status == 0:
        assert "starting all tasks again (restart 1 of 1)" in run.stdout
        report = json.loads((tmp_path / "run" / "report.json").read_text())
        assert (report["begun_at_step"], report["starts"]) == (4, 2)
        assert report["steps_lost"] <= 1
    assert proc.naming(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["local", *(pytest.param(each, marks=AGAIN) for each in ("mwms2w", "ps2w"))])
def test_a_run_ends_at_an_accuracy_and_goes_on_to_a_higher_one(name, tmp_path, cache):
    def until(accuracy):
        ended = train_config(
            name,
            *("--run_dir", tmp_path, f"--set=train.until_accuracy={accuracy}"),
            *("--set=data.name=digits", "--set=train.schedule=constant", "--set=train.steps=400"),
            *("--set=evaluation.every=4", "--set=evaluation.batches=2", "--set=checkpoint.every=400"),
            TFDIST_CACHE_DIR=cache,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        report = json.loads((tmp_path / "report.json").read_text())
        assert (tmp_path / "checkpoints" / str(report["steps"])).is_dir()
        assert Path(report["export"]).name == str(report["steps"])
        return report, ended.stdout + ended.stderr

    first, said = until(0.3)
    assert first["steps"] % 4 == 0
    assert 0 < first["steps"] < 400
    assert f"training ends at step {first['steps']} of 400: the test accuracy has reached 0.3" in said
    found = curve(tmp_path, "test", "accuracy")
    assert len(found) == first["steps"] / 4
    assert max([0.0, *found[:-1]]) < 0.3 <= found[-1]
    again, _ = until(0.3)
    assert (again["begun_at_step"], again["steps"]) == (first["steps"], first["steps"])
    on, said = until(0.6)
    assert on["begun_at_step"] == first["steps"] < on["steps"] < 400
    assert on["test_accuracy"] >= 0.6


@pytest.mark.slow
@pytest.mark.again  # tests/faults/test_schedule.py kills such workers, and tests/cluster/test_lost.py sees one compute again
def test_a_worker_of_its_own_pace_that_is_killed_comes_back_and_computes(tmp_path, cache):
    folder = tmp_path / "run"
    options = ["--set=data.name=digits", "--set=train.steps=300", "--set=evaluation.batches=2"]
    options += ["--run_dir", folder]
    launcher = start_train(CONFIGS / "ps2w.yaml", *options, output=tmp_path / "shown", TFDIST_CACHE_DIR=cache)
    try:
        while b"[launcher] step" not in (tmp_path / "shown").read_bytes():
            assert launcher.poll() is None, (tmp_path / "shown").read_text()
            time.sleep(0.05)
        os.kill(proc.task_of(folder, "worker:1"), signal.SIGKILL)
        status = launcher.wait(240)
    finally:
        launcher.terminate()
        launcher.wait()
    said = (tmp_path / "shown").read_text()
    assert status == 0, said
    assert "[launcher] starting worker:1 again, alone (restart 1 of 3)" in said
    assert said.count("[worker:1] tfdist: worker:1 serves at") == 2
    assert "lost, and started again: worker:1 exited with -9" in said
    assert "starting all tasks again" not in said
    report = json.loads((folder / "report.json").read_text())
    assert (report["steps"], report["begun_at_step"], report["starts"]) == (300, 0, 1)
    # Of the last 50 steps it has taken a part: the time of one of its steps is not 0.
    last = curve(folder, "train", "milliseconds of a step/worker:1")[-1]
    assert last > 0
    assert proc.naming(folder) == []


def _predict(folder, data, output, cache):
    words = ["--model", folder, "--input", data, "--output", output]
    return tfdist_forked("predict", *words, TFDIST_CACHE_DIR=cache)


def _curves(folder, name):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "summaries" / name))
    events.Reload()
    return set(events.Tags()["tensors"])


def _variables(folder):
    import tensorflow as tf

    reader = tf.train.load_checkpoint(str(folder / "variables"))
    return {name: reader.get_tensor(name).tobytes() for name in reader.get_variable_to_shape_map()}


@pytest.mark.slow
def test_an_evaluator_evaluates_each_checkpoint_and_ends(tmp_path, cache):
    config = tmp_path / "x.yaml"
    config.write_text(
        "cluster: {worker: 2, evaluator: 1}\ndata: {name: digits}\nevaluation: {batches: 2}\n"
        "launch: {threads: 1, network_isolation: never}\n"
        "train: {steps: 6}\ncheckpoint: {every: 2}\n"
    )
    run = train("--config", config, "--run_dir", tmp_path / "run", TFDIST_CACHE_DIR=cache)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "1 thread each" in run.stdout
    assert "WARNING: no private network (network_isolation is 'never')" in run.stdout
    for step in (2, 4, 6):
        assert f"[evaluator:0] tfdist: step {step}: loss" in run.stdout
    assert list((tmp_path / "run" / "summaries" / "evaluator").iterdir())
    assert proc.naming(tmp_path) == []


def test_a_substitute_is_said_first_and_last(tmp_path, cache):
    config = tmp_path / "x.yaml"
    config.write_text(
        "strategy: {name: one_device}\n"
        f"data: {{name: mnist, dir: {tmp_path}, if_unavailable: digits}}\n"
        "train: {steps: 2}\nevaluation: {batches: 2}\n"
    )
    options = ["--config", config, "--run_dir", tmp_path / "run"]
    run = tfdist_forked("train", *options, TFDIST_CACHE_DIR=cache)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "ATTENTION: 'digits' was used in place of 'mnist'" in run.stdout
    assert "ATTENTION: 'digits' is used in place of 'mnist'" in run.stderr
    for file in ("report.json", "export/latest/metadata.json"):
        assert json.loads((tmp_path / "run" / file).read_text())["substitute_for"] == "mnist"


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("train: {epochs: 0}", [], "{path}:1: train.epochs: expected a whole number >= 1, received 0"),
        ("{}", ["--set=train.epochs=many"], "--set train.epochs=many: train.epochs: expected a whole number, received 'many'"),
        ("{}", ["--set=train.epoch=2"], "--set train.epoch=2: train.epoch: unknown key. Did you mean 'epochs'?"),
        ("{}", ["--set=train"], "--set train: expected name.of.key=value"),
        ("{}", ["--run_dir=s3://bucket/run"], "tfdist: s3://bucket/run: TensorFlow 2."),
        ("cluster: {worker: 2}\nlaunch: {network_isolation: always}", ["--run_dir=gs://bucket/run"], "launch.network_isolation: is 'always', but the tasks must reach"),
        ("model: {name: mnist_cn}\ndata: {name: digits}", [], "model: there is no 'mnist_cn'"),
        ("data: {name: nosuchset}", [], "nosuchset"),
        ("cluster: {worker: ['127.0.0.1:1', '127.0.0.1:2']}", [], "{path}:1: cluster: gives addresses, but not which of them"),
        ("cluster: {worker: 2}\nstrategy: {name: parameter_server}\ndata: {name: digits}", [], "worker:"),
        ("cluster: {worker: 2}\nstrategy: {device: gpu}\ndata: {name: digits}", [], "worker:"),
    ],
)  # fmt: skip
def test_a_mistake_is_said_and_status_2(tmp_path, cache, monkeypatch, text, arguments, message):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    config = tmp_path / "x.yaml"
    config.write_text(text)
    run_it = train if "cluster" in text else functools.partial(tfdist_forked, "train")
    run = run_it("--config", config, "--run_dir", tmp_path / "run", *arguments, TFDIST_CACHE_DIR=cache)
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
        "data: {name: digits}\ntrain: {steps: 3}\nevaluation: {batches: 2}\n"
    )
    told = train("--config", config).stderr
    assert f"--config {config} --task worker:1" in told
    options = ["--config", config, "--run_dir", tmp_path / "run"]
    environ = {"TFDIST_CACHE_DIR": cache, "TF_NUM_INTRAOP_THREADS": "1"}
    logs = [tmp_path / f"worker-{i}.log" for i in range(2)]
    tasks = [
        start_tfdist("train", *options, "--task", f"worker:{i}", output=logs[i], **environ) for i in range(2)
    ]
    try:
        ends = [task.wait() for task in tasks]
    finally:
        for task in tasks:
            task.kill()
    assert ends == [0, 0], [log.read_text() for log in logs]
    assert json.loads((tmp_path / "run" / "report.json").read_text())["steps"] == 3


@pytest.mark.parametrize(
    ("set_on_first", "set_on_second", "message"),
    [
        ("train.seed=0", "train.learning_rate=0.01", "train.learning_rate: differs between worker:0 and worker:1; here it is "),
        # The second has no network.
        ("data.name=digits", "data.name=mnist", "the data set: differs between worker:0 and worker:1; here it is "),
    ],
)  # fmt: skip
def test_tasks_started_by_hand_with_other_settings_or_data_end(
    set_on_first, set_on_second, message, tmp_path, cache
):
    from tfdist import ClusterConfig

    address, other = ClusterConfig.local(workers=2).worker
    config = tmp_path / "x.yaml"
    config.write_text(
        f"cluster: {{worker: ['{address}', '{other}']}}\ntrain: {{steps: 3}}\nevaluation: {{batches: 2}}\n"
        f"data: {{name: digits, dir: {tmp_path}, if_unavailable: shapes}}\n"
    )
    options = ["--config", config, "--run_dir", tmp_path / "run"]
    environ = {"TFDIST_CACHE_DIR": str(cache), "TF_NUM_INTRAOP_THREADS": "1"}
    logs = [tmp_path / f"worker-{i}.log" for i in range(2)]
    tasks = [
        start_tfdist("train", *options, f"--set={change}", "--task", f"worker:{i}", output=logs[i], **environ)
        for i, change in enumerate((set_on_first, set_on_second))
    ]
    try:
        ends = [task.wait() for task in tasks]
    finally:
        for task in tasks:
            task.kill()
    texts = [log.read_text() for log in logs]
    assert ends == [2, 2], texts
    assert all(message in text and "Traceback" not in text for text in texts), texts
    assert list((tmp_path / "run" / "checkpoints").iterdir()) == []  # which the first has locked


_IN_ONE_SECOND = """
import sys
import time

written = time.strftime
time.strftime = lambda form, *moment: written(form.replace("%Y%m%d-%H%M%S", "20260101-120000"), *moment)

from tfdist.__main__ import main

main()
"""


@pytest.mark.slow  # tests/unit/_utils/test_write_files.py asserts the same of the folders alone
def test_runs_that_begin_in_one_second_have_folders_of_their_own(tmp_path, cache, monkeypatch):
    script, outputs = tmp_path / "in_one_second.py", [tmp_path / f"{i}.log" for i in range(2)]
    script.write_text(_IN_ONE_SECOND)
    monkeypatch.chdir(tmp_path)
    words = [
        script,
        "train",
        "--config",
        CONFIGS / "local.yaml",
        "--set=data.name=digits",
        "--set=train.steps=2",
    ]
    words += ["--set=evaluation.batches=2"]
    runs = [start_script(*words, output=output, TFDIST_CACHE_DIR=cache) for output in outputs]
    try:
        ends = [run.wait() for run in runs]
    finally:
        for run in runs:
            run.kill()
    said = [output.read_text() for output in outputs]
    assert ends == [0, 0], said
    folders = [tmp_path / "runs" / f"local-20260101-120000{end}" for end in ("", "-2")]
    assert sorted(tmp_path.glob("runs/*")) == folders
    for folder in folders:
        report = json.loads((folder / "report.json").read_text())
        assert report["export"] == str(folder / "export" / "2")
        # Events of two runs in one file would show both.
        starts = (folder / "events.jsonl").read_text().count('"run_started"')
        assert starts == 1
        assert sum(f"report         runs/{folder.name}/report.html\n" in text for text in said) == 1


def test_a_mistake_that_is_seen_before_the_tasks_start_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = tfdist_forked("train", "--config", CONFIGS / "ps2w.yaml", "--set=data.name=none")
    assert run.returncode == 2, run.stdout + run.stderr
    assert list(tmp_path.glob("runs/*")) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "epochs"),
    [
        ("local", 1),
        # tests/cluster proves that workers in step learn what one process learns.
        pytest.param("mwms2w", 1, marks=pytest.mark.again),
        *(pytest.param(each, 3, marks=pytest.mark.again) for each in ("mwms2w", "ps2w")),
    ],
)
@pytest.mark.skipif("TFDS_DATA_DIR" not in os.environ, reason="TFDS_DATA_DIR is not set")
def test_mnist_is_learned_to_98_and_a_half_percent(name, epochs, tmp_path, cache):
    run = train(
        "--config",
        CONFIGS / f"{name}.yaml",
        f"--set=train.epochs={epochs}",
        "--set=data.if_unavailable=fail",
        "--run_dir",
        tmp_path / "run",
        TFDIST_CACHE_DIR=cache,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert json.loads((tmp_path / "run" / "report.json").read_text())["test_accuracy"] >= 0.985
