"""`tfdist verify`: how it starts its processes, and its table on a terminal of 80 columns."""

import contextlib
import io

import pytest
from rich.console import Console

from tfdist.cli import verify
from tfdist.cluster.config import ClusterConfig
from tfdist.errors import TfdistError
from tfdist.launcher.outcome import LaunchError
from tfdist.strategies.factory import check_strategy
from tfdist.trainer.config import read_config
from tfdist.trainer.equivalence import Difference


@pytest.mark.parametrize("worst", [9.2e-14, 1.0])
def test_no_number_is_cut(monkeypatch, worst):
    console = Console(file=io.StringIO(), width=80, soft_wrap=True)
    monkeypatch.setattr(verify, "console_for_tables", lambda: console)
    losses = {"loss": 0.002303102903, "other_loss": 2.303102903}
    difference = Difference(step=10, worst=worst, where="mnist_cnn/dense_1/kernel", allowed=1e-10, **losses)
    assert verify._show([difference], "multi_worker_mirrored") == (worst > 1e-10)
    lines = console.file.getvalue().splitlines()
    row = next(line for line in lines if line.strip().startswith("10"))
    assert row.split()[:4] == ["10", "0.002303102903", "2.303102903", f"{worst:.1e}"]
    assert row.split()[-1] == "1.0e-10"
    assert max(map(len, lines[:-1])) <= 80  # the last one is a sentence


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text(
        "cluster: {worker: 2}\nstrategy: {name: multi_worker_mirrored}\n"
        "communication: {implementation: tcp, dtype: bfloat16}\nlaunch: {network_isolation: never}\n"
    )
    return path


def test_one_process_trains_what_a_cluster_that_communicates_trains(config):
    alone = read_config(config, [word.removeprefix("--set=") for word in verify._ALONE]).config
    assert check_strategy(ClusterConfig(), **alone.strategy_options(ClusterConfig())) == "one_device"


@pytest.fixture
def launch(monkeypatch):
    """Replace `launch` and the process that trains alone; return the arguments by their names."""
    launched = {}

    def launch(cluster, command, **options):
        launched.update(options, cluster=cluster)
        if launched.get("error"):
            raise launched["error"]

    monkeypatch.setattr(verify, "_run", lambda words: None)
    monkeypatch.setattr("tfdist.launcher.launch_tasks.launch", launch)
    return launched


def test_its_cluster_is_isolated_as_the_config_says(config, launch):
    with contextlib.suppress(FileNotFoundError):  # nothing has trained
        verify.main(str(config))
    assert launch["network_isolation"] == "never"


def test_no_evaluator_writes_the_record_of_the_cluster(config, launch):
    with contextlib.suppress(FileNotFoundError):
        verify.main(str(config), ["cluster.evaluator=1"])
    assert launch["cluster"].counts == {"worker": 2}


def test_the_reason_of_a_cluster_that_fails_is_shown(config, launch):
    tail = ["Traceback", "tfdist: data.batch_size: 2 is too small for 3 workers", "more"]
    launch["error"] = LaunchError(
        "worker:0", "exited with 2; log: /tmp/gone", exit_code=2, exits=(), tail=tail
    )
    with pytest.raises(TfdistError) as error:
        verify.main(str(config))
    assert str(error.value) == "worker:0: data.batch_size: 2 is too small for 3 workers"
    assert error.value.exit_code == 2


@pytest.mark.parametrize(
    ("changes", "gpus", "name"),
    [
        (["strategy.name=auto"], [], "multi_worker_mirrored"),
        (["strategy.name=auto", "cluster={}"], [], "one_device"),
        (["strategy.name=auto", "cluster={}"], ["0", "1"], "mirrored"),
        (["strategy.name=auto", "cluster={}", "strategy.device=cpu"], ["0", "1"], "one_device"),
        (["strategy.name=auto", "cluster={}", "strategy.logical_devices=2"], [], "mirrored"),
    ],
)
def test_the_strategy_that_trains_is_named(config, monkeypatch, changes, gpus, name):
    monkeypatch.setattr(verify, "own_gpus", lambda: gpus)
    settings = read_config(config, changes)
    assert verify._strategy(settings, settings.find_cluster()) == name
