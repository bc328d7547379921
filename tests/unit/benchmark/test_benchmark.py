"""What is made of what was measured: where a step's time goes, what is said of it, what is tried and chosen."""

import subprocess
import sys

import pytest

from tfdist.benchmark.breakdown import NAMES, Parts, parts_of
from tfdist.benchmark.options_to_try import Candidate, options_to_try
from tfdist.benchmark.report import as_values, caveats, show_scaling
from tfdist.benchmark.scaling import Row, Scaling
from tfdist.benchmark.scenarios import Bench, alone, of_workers, whole_machine
from tfdist.benchmark.task_measurements import Record, Sample
from tfdist.benchmark.tuning import Tried, chosen, yaml_lines
from tfdist.cli import bench as cli
from tfdist.cli.bench import _counts
from tfdist.errors import ConfigError
from tfdist.launcher.share_cores_and_gpus import own_cores
from tfdist.trainer.config import read_config

CLUSTERS = {
    "one_device": "{}",
    "mirrored": "{}",
    "multi_worker_mirrored": "{worker: 2}",
    "parameter_server": "{chief: 1, worker: 2, ps: 1}",
    "parameter_server_sync": "{chief: 1, worker: 2, ps: 1}",
}


@pytest.mark.parametrize("measure", ["_measure", "_tune"])
def test_the_values_go_into_a_device(measure, bench, tmp_path, monkeypatch):
    for name in ("scaling.measure_scaling", "tuning.tune", "options_to_try.options_to_try"):
        monkeypatch.setattr(f"tfdist.benchmark.{name}", lambda *_: None)
    for name in ("show_scaling", "show_tuning"):
        monkeypatch.setattr(f"tfdist.benchmark.report.{name}", lambda _: None)
    monkeypatch.setattr("tfdist.benchmark.report.as_values", lambda _: {"speed": 7})
    monkeypatch.setattr(cli, "prepare_data", lambda _: None)
    (tmp_path / "values").symlink_to("/dev/null")
    more = {"plot": None} if measure == "_measure" else {}
    getattr(cli, measure)(bench(), (), **more, json=str(tmp_path / "values"))
    assert (tmp_path / "values").is_char_device()


@pytest.fixture
def bench(tmp_path):
    def make(strategy="multi_worker_mirrored", *, cluster=None, weak=False, more=""):
        path = tmp_path / "x.yaml"
        path.write_text(
            f"cluster: {cluster or CLUSTERS[strategy]}\nstrategy: {{name: {strategy}}}\ndata: {{batch_size: 96}}\n{more}\n"
        )
        settings = read_config(path)
        return Bench(settings, settings.find_cluster(environ={}), weak=weak)

    return make


def record(task="worker:0", exchange="ring", *, step=0.1, compute=0.06, speed=1000.0, tasks=(), **more):
    return Record(
        task=task,
        strategy="X",
        exchange=exchange,
        examples_per_second=speed,
        step=step,
        asked=more.pop("asked", 0.0),
        computing=dict.fromkeys(tasks or (task,), compute) if compute else {},
        processors={task: 0.05},
        sent={},
        parameters=4_000_000,
        versions={},
        **more,
    )


def test_what_the_ring_and_the_graph_have_measured_is_taken_as_it_is():
    sample = Sample(
        [
            record("worker:0", compute=0.05, asked=0.009, agreeing=0.004, moving=0.02, waiting=0.015),
            record("worker:1", compute=0.06, asked=0.005, agreeing=0.004, moving=0.02, waiting=0.005),
        ]
    )
    parts = parts_of(sample)
    found = [getattr(parts, name) for name in NAMES]
    assert found == pytest.approx([0.003, 0.055, 0.02, 0.01, 0.012])
    assert parts.step == pytest.approx(sample.step)
    assert parts.derived == frozenset()


def test_a_step_takes_only_the_part_of_the_exchange_in_which_nothing_is_computed():
    sample = Sample([record(compute=0.06, asked=0.01, moving=0.02, waiting=0.01, hidden=0.015)])
    assert [getattr(parts_of(sample), name) for name in NAMES] == pytest.approx(
        [0.01, 0.06, 0.005, 0.01, 0.015]
    )

    sample = Sample([record(compute=0.06, asked=0.01, moving=0.02, waiting=0.01, hidden=0.026)])
    assert [getattr(parts_of(sample), name) for name in NAMES] == pytest.approx(
        [0.01, 0.06, 0.0, 0.004, 0.026]
    )


def test_where_nobody_measures_the_exchange_it_is_what_a_step_takes_longer_than_alone():
    by_itself = Sample([record("this process", "none", step=0.05, compute=0.04, asked=0.002)])
    between = Sample(
        [record(each, "collectives", asked=0.03, compute=0.04) for each in ("worker:0", "worker:1")]
    )
    parts = parts_of(between, by_itself)
    assert [parts.input, parts.compute, parts.exchange, parts.rest] == pytest.approx(
        [0.002, 0.04, 0.05, 0.008]
    )
    assert parts.wait is None
    assert parts.derived == {"input", "exchange", "rest"}

    beside_ps = Sample(
        [record("chief:0", "servers", asked=0.004, compute=0.09, tasks=("worker:0", "worker:1"))]
    )
    parts = parts_of(beside_ps, by_itself)
    assert [parts.input, parts.compute, parts.exchange, parts.rest] == pytest.approx(
        [0.004, 0.04, 0.048, 0.008]
    )
    assert parts.derived == {"compute", "exchange", "rest"}


@pytest.mark.parametrize("step", [0.05, 0.03, 0.001])
def test_no_part_is_negative_where_a_step_is_shorter_than_alone(step):
    by_itself = Sample([record("this process", "none", step=0.05, compute=0.04, asked=0.002)])
    parts = parts_of(Sample([record("chief:0", "servers", step=step, asked=0.002)]), by_itself)
    assert min(parts.input, parts.compute, parts.exchange, parts.rest) >= 0
    assert parts.step == pytest.approx(step)


def test_where_a_model_hides_when_it_computes_that_is_what_remains():
    parts = parts_of(Sample([record(compute=0.0, asked=0.01, moving=0.02, waiting=0.01)]))
    assert [getattr(parts, name) for name in NAMES] == pytest.approx([0.01, 0.06, 0.02, 0.01, 0.0])
    assert parts.derived == {"compute"}


# -- the scenarios --


def test_every_worker_has_the_same_share_and_one_process_too(bench):
    cores, made = len(own_cores()), bench()
    share = max(1, cores // 2)
    one, two, single = of_workers(made, 1), of_workers(made, 2), alone(made, made.batch(1))
    assert (one.cores, one.threads) == (single.cores, single.threads) == (share, share)
    assert (two.cores, two.threads) == (min(cores, 2 * share), share)
    whole = whole_machine(made)
    assert (whole.cores, whole.threads) == (cores, cores)
    assert two.roles == {"worker": 2}
    assert of_workers(bench("parameter_server"), 3).roles == {"chief": 1, "worker": 3, "ps": 1}


@pytest.mark.parametrize(
    ("strategy", "weak", "batches", "part"),
    [
        ("multi_worker_mirrored", False, [96, 96], 48),
        ("multi_worker_mirrored", True, [48, 96], 48),
        ("parameter_server_sync", False, [96, 96], 48),
        ("parameter_server", False, [96, 96], 96),
        ("parameter_server", True, [96, 96], 96),
    ],
)
def test_a_batch_is_of_all_workers_that_work_in_step_and_of_one_that_goes_alone(
    bench, strategy, weak, batches, part
):
    made = bench(strategy, weak=weak)
    assert [made.batch(workers) for workers in (1, 2)] == batches
    assert made.part(2) == part


def test_a_chief_without_ps_computes_too(bench):
    assert bench(cluster="{chief: 1, worker: 2}").workers == 3
    assert bench("parameter_server").workers == 2


@pytest.mark.parametrize(
    ("cluster", "devices", "strategy"),
    [
        ("{}", "", "one_device"),
        ("{}", ", logical_devices: 2", "mirrored"),
        ("{worker: 2}", "", "multi_worker_mirrored"),
        ("{worker: 2, ps: 1}", "", "parameter_server"),
    ],
)
def test_auto_is_named_as_the_strategy_that_it_takes(tmp_path, cluster, devices, strategy):
    path = tmp_path / "x.yaml"
    path.write_text(f"cluster: {cluster}\nstrategy: {{name: auto, device: cpu{devices}}}\n")
    settings = read_config(path)
    assert Bench(settings, settings.find_cluster(environ={})).strategy == strategy


def test_machines_with_names_are_refused(bench):
    with pytest.raises(
        ConfigError, match=r"cluster: gives addresses; bench measures clusters that it starts"
    ):
        bench(cluster='{worker: ["10.0.0.1:2222", "10.0.0.2:2222"]}')


def test_the_numbers_of_workers_are_ranges_or_lists(bench):
    made = bench()
    assert _counts(None, made) == [1, 2]
    assert _counts("1..4", made) == [1, 2, 3, 4]
    assert _counts("4,1,2", made) == [1, 2, 4]
    for wrong in ("0..2", "3..2", "1-2", "", "1..65", "a"):
        with pytest.raises(ConfigError, match=r"--workers: expected 1\.\.4 or 1,2,4"):
            _counts(wrong, made)
    with pytest.raises(ConfigError, match="--workers: has no effect with mirrored"):
        _counts("1", bench("mirrored"))


# -- the report --


@pytest.mark.parametrize(("workers", "warned"), [(2, False), (4, True)])
def test_what_takes_most_of_a_step_is_named_with_its_share(bench, workers, warned, capsys):
    def row(scenario, speedup, parts):
        return Row(scenario, [Sample([record(speed=1000.0 * speedup)])], [speedup], parts)

    rows = [
        row(alone(bench(), 96), 1.0, Parts(0, 1, 0, 0, 0)),
        row(of_workers(bench(), workers), 1.9, Parts(0.1, 0.3, 0.6, None, 0)),
    ]
    found = Scaling(bench(), rows, None, 2, 0.0, 10.0)
    show_scaling(found)
    printed = capsys.readouterr().out
    assert f"{workers} workers: bound by exchange, 60% of a step\n" in printed
    assert ("4 workers share 2 cores here" in printed) == warned
    assert as_values(found)["bound_by"] == "exchange"


def test_what_makes_the_figures_uncertain_is_said():
    assert caveats(0.01, 2, 0.05, 10.0) == []
    busy, short, apart = caveats(0.8, 2, 0.25, 0.02)
    assert busy.startswith("Other programs kept up to 0.8 of 2 cores busy meanwhile")
    assert short == "The shortest run was measured for 0.02 s: use more --steps."
    assert apart.startswith("The rounds differ by 25%")
    assert caveats(None, 2, 0.0, 10.0)[0].startswith("This system does not show")


# -- tuning --


def tried(candidate, *ratios, refused=""):
    return Tried(candidate.name, None, candidate, samples=[], ratios=list(ratios), refused=refused)


def test_of_each_key_the_best_is_chosen_that_helped_in_every_round():
    ten, fifty = (Candidate("k", (f"train.steps_per_execution={count}",)) for count in (10, 50))
    pin, xla = (
        Candidate("launch.pin", ("launch.pin=true",)),
        Candidate("train.jit_compile", ("train.jit_compile=true",)),
    )
    little, none = (
        Candidate("oneDNN", env={"X": "0"}),
        Candidate("c", ("communication={implementation: ring}",)),
    )
    found = chosen(
        [
            tried(ten, 1.05, 1.06, 1.04),
            tried(fifty, 1.07, 1.08, 1.09),
            tried(pin, 1.3, 1.2, 1.1),
            tried(xla, 1.5, 1.5, 0.99),
            tried(little, 1.01, 1.01, 1.01),
            tried(none, refused="is not supported"),
        ]
    )
    assert [each.candidate for each in found] == [pin, fifty]


def test_what_is_set_is_written_as_a_config_has_it(tmp_path):
    changes = [
        "train.steps_per_execution=10",
        "communication={implementation: ring}",
        "train.jit_compile=true",
    ]
    path = tmp_path / "x.yaml"
    path.write_text(yaml_lines(changes))
    config = read_config(path).config
    assert (config.train.steps_per_execution, config.train.jit_compile) == (10, True)
    assert config.communication.implementation == "ring"
    assert yaml_lines([]) == ""


@pytest.mark.parametrize("strategy", CLUSTERS)
def test_what_is_tried_can_be_said_in_a_config_and_changes_it(bench, strategy, tmp_path):
    made = bench(strategy)
    found = options_to_try(made)
    assert len({each.name for each in found}) == len(found)
    for each in found:
        if each.changes:
            assert read_config(made.settings.path, each.changes).config != made.settings.config
        else:
            assert each.env
    same = {each.key for each in found if each.keeps}
    assert ("communication.implementation" in same) == (strategy not in ("one_device", "mirrored"))
    assert ("launch.threads" in same) == (strategy not in ("one_device", "mirrored"))
    assert ("train.jit_compile" in same) == ("server" not in strategy)
    assert {each.key for each in found if not each.keeps} >= {"strategy.precision", "data.batch_size"}


@pytest.mark.parametrize(("said", "values"), [(None, ["1", "0"]), ("1", ["0"]), ("0", ["1"])])
def test_onednn_is_tried_both_ways_unless_it_is_said(bench, monkeypatch, said, values):
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)
    if said is not None:
        monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", said)
    found = options_to_try(bench(), ["TF_ENABLE_ONEDNN_OPTS"])
    assert [each.env["TF_ENABLE_ONEDNN_OPTS"] for each in found] == values


def test_other_steps_of_a_call_are_tried_only_where_they_are_said(bench):
    found = options_to_try(bench(more="train: {steps_per_execution: 10}"), ["train.steps_per_execution"])
    assert [each.changes for each in found] == [
        ("train.steps_per_execution=1",),
        ("train.steps_per_execution=50",),
    ]


def test_only_what_is_named_is_tried(bench):
    made = bench()
    assert {each.key for each in options_to_try(made, ["train", "launch.pin"])} == {
        "train.jit_compile",
        "launch.pin",
    }
    with pytest.raises(
        ConfigError, match=r"--only: there is no 'launch\.pins' to try\. Did you mean 'launch\.pin'\?"
    ):
        options_to_try(made, ["launch.pins"])


def test_what_the_launcher_heeds_is_applied_to_the_launch(bench):
    scenario = of_workers(bench(), 2)
    assert Candidate("launch.threads", ("launch.threads=7",)).applied(scenario).threads == 7
    assert Candidate("launch.pin", ("launch.pin=true",)).applied(scenario).pin
    assert Candidate("oneDNN", env={"X": "0"}).applied(scenario).env == {"X": "0"}


# -- the verb --


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "tfdist: --config: is missing"),
        (["--config=CONFIG", "--workers=0..3"], "tfdist: --workers: expected 1..4 or 1,2,4"),
        (["--config=CONFIG", "--tune", "--workers=1"], "tfdist: --workers: has no effect with --tune"),
        (["--config=CONFIG", "--tune", "--plot=x.png"], "tfdist: --plot: has no effect with --tune"),
        (["--config=CONFIG", "--set=cluster={}", "--weak"], "tfdist: --weak: has no effect with one_device"),
        (["--config=CONFIG", "--steps=0"], "tfdist: command line"),
        (["--config=CONFIG", "--only=train"], "tfdist: --only: has no effect without --tune"),
        (["--config=CONFIG", '--set=cluster={worker: ["h:1", "i:1"]}'], "cluster: gives addresses"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(flags, message, tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("cluster: {worker: 2}\n")
    flags = [flag.replace("CONFIG", str(path)) for flag in flags]
    words = [sys.executable, "-m", "tfdist", "bench", *flags]
    run = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert run.returncode == 2
    assert message in run.stderr
    assert len(run.stderr.splitlines()) == 1
