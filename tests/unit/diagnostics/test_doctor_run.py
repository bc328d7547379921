"""Check that `tfdist doctor` finds what is wrong with a run: its data, its model, its memory."""

import json
import os
import subprocess
import time
from pathlib import Path

import pytest
from model_parts import sizes_of

from again import again
from commands import tfdist
from tfdist.cli.doctor import main
from tfdist.cluster.config import ClusterConfig
from tfdist.diagnostics.doctor.check_run import (
    check_run,
    config_digest,
    memory_finding,
    try_parts,
)
from tfdist.diagnostics.doctor.parts_of_run_records import Plan
from tfdist.errors import ConfigError
from tfdist.trainer.config import Config, read_config

BROKEN = """
import os, signal, time
import tensorflow as tf

def fails(image_shape, classes):
    raise RuntimeError("layers do not fit")

def crashes(image_shape, classes):
    os.kill(os.getpid(), signal.SIGSEGV)

def hangs(image_shape, classes):
    open("hangs", "w").close()
    time.sleep(600)
"""


@pytest.fixture
def written(tmp_path, cache, monkeypatch):
    """Return a function that writes a config, in the folder of models that do not build."""
    (tmp_path / "broken.py").write_text(BROKEN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TFDIST_CACHE_DIR", cache)

    def write(text):
        (tmp_path / "run.yaml").write_text(text)
        return "run.yaml"

    return write


def found(path, *, speed=False):
    """Return the findings about a run, by check."""
    settings = read_config(path)
    cluster = settings.find_cluster()
    parts = try_parts(Plan(config=path, measures_speed=speed), seconds=300.0)
    return {finding.check: finding for finding in check_run(settings.config, path, cluster, parts)}


def run_until_it_hangs(words, *, timeout, **options):
    """Run a command as subprocess.run does, which hangs, but do not wait for as long as that."""
    del options
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and not Path("hangs").exists():
            time.sleep(0.05)
        process.kill()
    raise subprocess.TimeoutExpired(words, timeout)


def test_a_run_that_can_start_is_well(written):
    findings = found(written("{data: {name: digits, batch_size: 32}, cluster: {worker: 2}}"), speed=True)

    assert [finding.state for finding in findings.values()] == ["ok"] * 6
    assert list(findings) == ["config", "strategy", "data", "model", "memory needed", "speed"]
    assert findings["strategy"].found == "multi_worker_mirrored"
    assert findings["data"].found.startswith("digits: 60,000 images to train on, 10,000 to test on, 28x28x1")
    assert "mnist_cnn builds and compiles: " in findings["model"].found
    assert "examples/s in batches of 16, by one process alone" in findings["speed"].found


def test_a_data_folder_that_does_not_exist_is_a_failure(written):
    findings = found(written("data: {name: ./no-such-folder}"))

    assert findings["strategy"].state == "ok"
    assert findings["data"].state == "failed"
    assert "no-such-folder: does not exist" in findings["data"].found
    assert findings["data"].remedy
    assert "model" not in findings


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        again("fails", "RuntimeError: layers do not fit"),
        ("crashes", "SIGSEGV ended the process"),
        ("hangs", "not done within 300 s"),
        ("missing", "has no 'missing'"),
    ],
)
def test_a_model_that_does_not_build_is_a_failure(written, monkeypatch, name, problem):
    if name == "hangs":
        monkeypatch.setattr(subprocess, "run", run_until_it_hangs)
    findings = found(written(f"{{data: {{name: digits}}, model: {{name: 'broken:{name}'}}}}"))

    assert findings["data"].state == "ok"
    assert findings["model"].state == "failed"
    assert problem in findings["model"].found
    assert findings["model"].remedy


def test_a_strategy_that_does_not_fit_is_a_failure(written):
    findings = found(written("{strategy: {name: mirrored, min_shard_bytes: 5}}"))

    assert findings["strategy"].state == "failed"
    assert "has no effect with mirrored" in findings["strategy"].found


def test_the_memory_that_tasks_need_is_told():
    sizes = sizes_of(100_000_000, slots=200_000_000, private=300_000_000, libraries=250_000_000)
    here, hosts = ClusterConfig.local(workers=2), ["a:1", "b:1"]
    elsewhere = ClusterConfig(worker=hosts).with_task(("worker", 1))

    def found(cluster, available):
        return memory_finding(sizes, Config(), cluster, available)

    total = 2 * (300 + 180 + 100 + 200 + 100) + 250
    assert found(here, total * 1_000_000).state == "ok"
    short = found(here, total * 1_000_000 - 1)
    assert short.state == "warning"
    assert "worker:0…1 880 MB; 250 MB for libraries and data" in short.found
    assert "2,010 MB in all on one machine, and 2,010 MB is available" in short.found
    assert found(elsewhere, None).found.startswith(
        "worker:1 880 MB; 250 MB"
    )  # the others have machines of their own
    # Nothing says which host this one is: then the tasks of the host that needs least must fit.
    shared = ClusterConfig(worker=["h0:1", "h0:2", "h1:1", "h1:2", "h1:3"])
    of_two, of_three = 2 * 880 + 250, 3 * 880 + 250
    for cluster, names, needed in (
        (shared.with_task(("worker", 1)), "worker:0…1 880 MB", of_two),
        (shared.with_task(("worker", 2)), "worker:2…4 880 MB", of_three),
        (shared, "worker:0…1 880 MB", of_two),
    ):
        assert found(cluster, needed * 1_000_000).state == "ok"
        assert found(cluster, needed * 1_000_000 - 1).state == "warning"
        assert found(cluster, None).found.startswith(names)


@pytest.mark.parametrize(("name", "value"), [("measure", True), ("set", ["train.epochs=3"])])
def test_what_is_of_a_config_needs_one(name, value):
    with pytest.raises(ConfigError, match=f"--{name}: .*--config cluster.yaml"):
        main(None, **{name: value})


def test_an_address_that_was_not_tried_is_said(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("TFDIST_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("tfdist.cli.doctor.check_software", lambda: (None, []))
    main(None, run_dir="gs://bucket/runs")
    [line] = [line for line in capsys.readouterr().out.splitlines() if line[11:].startswith("address ")]
    assert line.startswith("  warning  address        gs://bucket/runs was not tried; ")
    main(None, run_dir=str(tmp_path))
    assert "was not tried" not in capsys.readouterr().out


def test_a_digest_depends_on_what_is_said_alone(written):
    one = read_config(written("train: {epochs: 3}  # a comment")).config
    same = read_config(written("train: {epochs: 3, seed: 0}")).config
    other = read_config(written("train: {epochs: 4}")).config

    assert config_digest(one) == config_digest(same) != config_digest(other)


def test_the_command_reports_a_config_that_is_wrong(written):
    path = written("trian: {epochs: 3}")
    run = tfdist("doctor", "--config", path, "--json", PATH=os.environ["PATH"])

    assert run.returncode == 2
    last = json.loads(run.stdout)[-1]
    assert (last["group"], last["check"], last["state"]) == ("Run", "config", "failed")
    assert "trian" in last["found"]
    assert "Traceback" not in run.stderr
