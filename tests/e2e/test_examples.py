import importlib.util
import re
import sys
from pathlib import Path

import pytest

from commands import python, script_forked, tfdist

EXAMPLES = Path(__file__).parents[2] / "examples"


def launch(name, *cluster, options=(), run_dir):
    """Run an example as every task of a cluster, and return what it printed."""
    script = [sys.executable, EXAMPLES / f"{name}.py", *options]
    return _printed(tfdist("launch", *cluster, f"--run_dir={run_dir}", "--", *script))


def example(name, *options):
    """Run an example as it is, and return what it printed."""
    return _printed(python(EXAMPLES / f"{name}.py", *options))


def _printed(run):
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@pytest.mark.parametrize(
    ("launcher", "strategy"),
    [
        ([], r"OneDeviceStrategy"),
        (["--workers=2"], r"MultiWorkerMirrored"),
        pytest.param(["--workers=2", "--ps=1"], r"ParameterServer", marks=pytest.mark.slow),
    ],
)
@pytest.mark.usefixtures("forking")
def test_one_keras_script_runs_on_every_kind_of_cluster(launcher, strategy, tmp_path):
    if launcher:
        printed = launch("keras_script", *launcher, run_dir=tmp_path)
    else:
        printed = _printed(script_forked(EXAMPLES / "keras_script.py"))
    accuracy, used = re.search(r"accuracy (\d\.\d+) with (\w+)", printed).groups()
    assert float(accuracy) > 0.85
    assert re.fullmatch(strategy, used)


@pytest.mark.slow
@pytest.mark.parametrize(
    "tasks",
    [pytest.param(["--workers=2"], marks=pytest.mark.again), ["--workers=2", "--ps=1"]],
    ids=["mirrored workers", "parameter server"],
)
def test_a_loop_of_ones_own_has_the_losses_of_one_process(tasks, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    strategy = ["parameter_server_sync"] if "--ps=1" in tasks else []
    alone = example("custom_loop")
    together = launch("custom_loop", *tasks, options=strategy, run_dir=tmp_path / "run")
    losses = [re.findall(r"epoch \d: loss (\d\.\d+)", printed) for printed in (alone, together)]
    assert len(losses[0]) == 3
    assert losses[0] == losses[1]
    if strategy:
        printed = launch("custom_loop", *tasks, run_dir=tmp_path / "asynchronous")
        assert float(re.findall(r"epoch 3: loss (\d\.\d+) with ParameterServer", printed)[0]) < 0.3


@pytest.mark.slow
def test_an_ensemble_is_trained_member_by_member_on_different_tasks(tmp_path):
    printed = launch("ensemble", "--job=member=2", run_dir=tmp_path)
    alone, together = map(float, re.search(r"error: ([\d.]+) by one member, ([\d.]+) by 8", printed).groups())
    assert together < alone < 0.2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "job"), [("exp_data_parallel", "--job=worker=2"), ("exp_model_parallel", "--job=layers=2")]
)
def test_the_curve_of_the_cluster_lies_on_that_of_one_process(name, job, tmp_path):
    """The classics of 2016: y = e^x, its gradients averaged by a master, and its layers on different tasks."""
    plot = tmp_path / "curves.png"
    options = ["--plot", plot] if importlib.util.find_spec("matplotlib") else []
    printed = launch(name, job, options=options, run_dir=tmp_path / "run")
    found = re.search(
        r"the loss went from (\S+) to (\S+); the curves are (\S+) of their height apart", printed
    )
    first, last, apart = map(float, found.groups())
    assert last < first / 100
    assert apart < 1e-9  # float64: another order of sums, 200 steps long
    if name == "exp_model_parallel":
        places = re.findall(r"the layers are on (\S+) and (\S+)", printed)
        path = "/job:{}/replica:0/task:{}/device:CPU:0".format
        assert places[0] == (path("layers", 0), path("layers", 1))
        assert places[1] == (path("chief", 0), path("chief", 0))
    assert plot.exists() == bool(importlib.util.find_spec("matplotlib"))


@pytest.mark.slow
def test_cifar10_alone_and_on_a_cluster_gives_two_tables_and_the_ratio():
    printed = example("cifar10_cluster", "--steps=20", "--every=10")
    rows = re.findall(r"^\| (\d+) \| (\d\.\d\d) \| (\d+) \|$", printed, re.MULTILINE)
    assert [int(step) for step, _, _ in rows] == [10, 20, 10, 20]
    assert all(2.0 < float(loss) < 8.0 for _, loss, _ in rows)
    alone, together, ratio = (
        float(rows[1][2]),
        float(rows[3][2]),
        re.search(r"^ratio (\S+) ", printed, re.MULTILINE)[1],
    )
    assert float(ratio) == pytest.approx(together / alone, rel=0.05)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel does not tell what is sent")
def test_of_an_embedding_only_the_rows_of_the_batch_are_sent(tmp_path):
    rows = 200_000
    options = [f"--rows={rows}", "--steps=40"]
    printed = launch("embedding", "--workers=2", "--ps=2", options=options, run_dir=tmp_path)
    layer, embedding = printed.split("an embedding")
    for said, shard in ((layer, "[512, 4096]"), (embedding, f"[{rows // 2}, 16]")):
        assert {f"{shard} on ps:{index}" in said for index in (0, 1)} == {True}
    sent = [float(each) / 100 for each in re.findall(r" tasks, ([\d.]+)% of that", printed)]
    assert sent[:2] == pytest.approx([1.0, 1.0], rel=0.1)  # a layer is read whole, and so are its gradients
    touched = 256 * 20 / rows  # at most: users may be twice in a batch
    assert all(0.1 * touched < each < 1.3 * touched for each in sent[2:])


@pytest.mark.slow
@pytest.mark.again  # tests/unit/export compares the scores of a .tflite model
def test_the_model_answers_on_a_phone_as_it_does_here():
    printed = example("phone", "--set=train.steps=10", "--set=evaluation.batches=4")
    size, of, same, apart = re.search(
        r"^([\d.]+) MB, run by ai_edge_litert\S+: [\d.]+% of (\d+) digits are right\n"
        r"(\d+) of the labels are those of the SavedModel, whose scores are at most (\S+) away",
        printed,
        re.MULTILINE,
    ).groups()
    assert float(size) > 1
    assert int(same) == int(of) == 500
    assert float(apart) < 1e-4


@pytest.mark.slow
@pytest.mark.again  # tests/e2e/test_estimate_runs.py measures what a cluster sends
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel does not tell what is sent")
def test_the_cost_of_communication_is_estimated_and_measured(tmp_path):
    printed = launch("communication_cost", "--workers=2", options=["--steps=20"], run_dir=tmp_path)
    rows = re.findall(r"\| ([\w, ]+) \| ([\d.]+) \| (-?[\d.]+) \|$", printed, re.MULTILINE)
    assert len(rows) == 3
    assert float(rows[0][1]) > float(rows[1][1]) > 0
    _, estimated, measured = rows[2]
    assert float(measured) == pytest.approx(float(estimated), rel=0.02)


@pytest.mark.slow
@pytest.mark.again  # tests/cluster trains by each of the two strategies
def test_synchronous_and_asynchronous_updates_learn_the_same_at_another_pace(tmp_path):
    plot = tmp_path / "curves.png"
    options = ["--plot", plot] if importlib.util.find_spec("matplotlib") else []
    printed = example("sync_async", "--steps=40", *options)
    points = re.findall(r"([\d.]+) after ([\d.]+) s", printed)
    assert len(points) == 4 * 10
    curves = [[tuple(map(float, each)) for each in points[start::4]] for start in range(4)]
    for curve in curves:
        assert curve[-1][0] < curve[0][0] < 2.5
        assert sorted(seconds for _, seconds in curve) == [seconds for _, seconds in curve]
    # Even or not, synchronous workers compute the same; asynchronous ones do not wait.
    assert [loss for loss, _ in curves[0]] == [loss for loss, _ in curves[2]]
    assert plot.exists() == bool(importlib.util.find_spec("matplotlib"))


@pytest.mark.slow
@pytest.mark.again  # tests/faults kills tasks at any moment
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the tasks are found in /proc")
def test_a_run_whose_worker_and_ps_are_killed_ends_with_all_of_its_steps():
    options = ["--steps=200", "--set=data.batch_size=32", "--set=evaluation.batches=4"]
    printed = example("recovery", *options)
    assert re.findall(r"^killing (\S+), process \d+, after step (\d+)$", printed, re.MULTILINE) == [
        ("worker:1", "50"),
        ("ps:0", "100"),
    ]
    rows = re.findall(r"^\| [\w ]+ \| (\d+) \| (\d) \| (\d+) \| ([\d.]+) \|$", printed, re.MULTILINE)
    assert [row[:2] for row in rows] == [("200", "1"), ("200", "2")]
    assert int(rows[0][2]) == 0
    assert 0 <= int(rows[1][2]) <= 100


@pytest.mark.slow
@pytest.mark.again  # tests/unit/transport and tests/cluster/test_exchange.py prove sums and sizes
def test_gradients_in_fewer_bits_are_fewer_bytes():
    options = [
        "--dtypes",
        "float32",
        "int8",
        "--steps=60",
        "--set=data.name=digits",
        "--set=evaluation.batches=4",
    ]
    printed = example("exchange_dtypes", *options)
    rows = re.findall(r"^\| (\w+) \| (\d+) by worker \| ([\d.]+)% \| ([\d.]+) \|$", printed, re.MULTILINE)
    assert [row[0] for row in rows] == ["float32", "int8"]
    # A quarter and its scales, and what goes once and whole, of which 60 steps have much.
    assert rows[0][2] == "100.0"
    assert 25.4 < float(rows[1][2]) < 30
    assert all(float(row[3]) > 0.5 for row in rows)
