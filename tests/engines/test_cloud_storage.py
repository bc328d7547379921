"""Train into a bucket of Cloud Storage, and from one: TensorFlow's own client, against a server of these tests."""

import json
import os
import signal
import sys
import urllib.parse

import numpy as np
import pytest
from gcs_site import bucket_site, why_no_buckets
from submitted import wait_for

from commands import SECONDS

pytestmark = [pytest.mark.engines, pytest.mark.again]

TRAINING = """
data: {name: "gs://bucket/data/photos.npz", batch_size: 8}
model: {name: mnist_cnn}
train: {steps: 60, seed: 0}
evaluation: {every: 60}
checkpoint: {every: 20, keep: 1}
launch: {threads: 1}
"""


@pytest.fixture(scope="module")
def site():
    """Return machines that reach a bucket with images."""
    if reason := why_no_buckets():
        pytest.skip(reason)
    with bucket_site() as made:
        random = np.random.default_rng(0)
        arrays = {}
        for split, count in (("train", 200), ("test", 40)):
            arrays[f"x_{split}"] = random.integers(0, 256, (count, 28, 28), np.uint8)
            arrays[f"y_{split}"] = random.integers(0, 10, count)
        np.savez(made.folder / "bucket" / urllib.parse.quote("data/photos.npz", safe=""), **arrays)
        yield made


def environ(site, machine):
    """Return the variables of a machine, which has a cache of its own."""
    cache = site.folder.parent / f"cache-{machine}"
    return {**os.environ, **site.variables(), "TFDIST_CACHE_DIR": str(cache), "TF_CPP_MIN_LOG_LEVEL": "2"}


def command(site, text, run_dir, *words):
    config = site.folder.parent / "photos.yaml"
    config.write_text(text)
    return [sys.executable, "-m", "tfdist", "train", "--config", config, "--run_dir", run_dir, *words]


def sums(about):
    """Return the SHA-256 of each file of variables."""
    return json.loads(about.read_text())["sha256"]


def test_a_run_continues_on_another_machine_with_the_same_bits(site, tmp_path):
    plain = site.machines.run(
        "node1", command(site, TRAINING, tmp_path / "plain"), timeout=SECONDS, env=environ(site, "node1")
    )
    assert plain.returncode == 0, plain.stderr
    run_dir = "gs://bucket/runs/a"
    site.hold("40/about.json")
    log = tmp_path / "killed.log"
    with log.open("w") as output:
        killed = site.machines.start(
            "node1",
            command(site, TRAINING, run_dir),
            stdout=output,
            stderr=output,
            env=environ(site, "node1"),
        )
        wait_for(
            lambda: any("/upload/" in line and line.endswith("40/about.json") for line in site.requests()),
            log.read_text,
            seconds=SECONDS,
            process=killed,
        )
        os.killpg(killed.pid, signal.SIGKILL)
        killed.wait()
    site.release()
    assert {"20/about.json", "40/variables.index"} <= site.objects("runs/a/checkpoints/").keys()
    resumed = site.machines.run(
        "node2", command(site, TRAINING, run_dir), timeout=SECONDS, env=environ(site, "node2")
    )
    assert resumed.returncode == 0, resumed.stderr
    assert (
        "gs://bucket/runs/a/checkpoints/40: about.json is missing; using the checkpoint before it"
        in resumed.stderr
    )
    assert "resuming at step 20 of 60, from gs://bucket/runs/a/checkpoints" in resumed.stderr
    stored = site.objects("runs/a/")
    assert sums(stored["checkpoints/60/about.json"]) == sums(
        tmp_path / "plain" / "checkpoints" / "60" / "about.json"
    )
    assert not any(name.startswith(("checkpoints/20/", "checkpoints/40/")) for name in stored)
    report = json.loads(stored["report.json"].read_text())
    assert (report["steps"], report["starts"], report["steps_lost"]) == (60, 2, 20)
    assert report["export"] == "gs://bucket/runs/a/export/60"
    assert stored["export/latest"].read_text() == "60\n"
    assert {"export/60/saved_model.pb", "export/60/metadata.json"} <= stored.keys()
    assert "report         gs://bucket/runs/a/report.html" in resumed.stdout
    assert "mnist_cnn on " in stored["report.html"].read_text()
    starts = [line for line in stored["events.jsonl"].read_text().splitlines() if '"run_started"' in line]
    assert len(starts) == 2  # one on each machine
    assert "report/answers.json" in stored
    stored["report.html"].unlink()
    words = [sys.executable, "-m", "tfdist", "report", run_dir]
    again = site.machines.run("node1", words, timeout=SECONDS, env=environ(site, "node3"))
    assert (again.returncode, again.stdout) == (0, f"wrote {run_dir}/report.html\n"), again.stderr
    page = site.objects("runs/a/")["report.html"].read_text()
    assert "mnist_cnn on " in page
    assert '<p class="state done">done</p>' in page


CLUSTER = """
cluster: {worker: 1, ps: 1, chief: 1, evaluator: 1}
strategy: {name: parameter_server_sync}
data: {name: "gs://bucket/data/photos.npz", batch_size: 8}
model: {name: mnist_cnn}
train: {steps: 20, seed: 0}
checkpoint: {every: 10}
launch: {threads: 1}
"""


def test_a_cluster_trains_into_a_bucket_and_its_model_answers_from_there(site):
    run_dir = "gs://bucket/runs/b"
    run = site.machines.run(
        "node1", command(site, CLUSTER, run_dir), timeout=SECONDS, env=environ(site, "node1")
    )
    assert run.returncode == 0, run.stdout + run.stderr
    stored = site.objects("runs/b/")
    assert json.loads(stored["report.json"].read_text())["steps"] == 20
    assert {
        "checkpoints/10/about.json",
        "checkpoints/20/about.json",
        "export/20/saved_model.pb",
    } <= stored.keys()
    for writer in ("train", "test", "evaluator"):
        assert any(name.startswith(f"summaries/{writer}/events.") for name in stored), sorted(stored)
    answers = site.folder.parent / "answers.jsonl"
    words = ["predict", "--model", run_dir, "--input", "gs://bucket/data/photos.npz", "--output", answers]
    predicted = site.machines.run(
        "node2", [sys.executable, "-m", "tfdist", *words], timeout=SECONDS, env=environ(site, "node2")
    )
    assert predicted.returncode == 0, predicted.stderr
    assert len(answers.read_text().splitlines()) == 40


@pytest.mark.parametrize(
    ("data", "run_dir", "message"),
    [
        ("gs://bucket/data/photos.npz", "gs://private/a", "gs://private/a/.tfdist-probe: cannot be written: the store denies access"),
        ("gs://bucket/data/photos.npz", "gs://missing/a", "gs://missing/a/.tfdist-probe: cannot be written: "),
        ("gs://private/photos", "runs/a", "gs://private/photos: cannot be read: the store denies access"),
        ("gs://bucket/nothing", "runs/a", "gs://bucket/nothing: does not exist"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(site, tmp_path, data, run_dir, message):
    text = TRAINING.replace("gs://bucket/data/photos.npz", data)
    place = run_dir if "://" in run_dir else tmp_path / run_dir
    run = site.machines.run("node1", command(site, text, place), timeout=SECONDS, env=environ(site, "node1"))
    assert run.returncode == 2, run.stderr
    [line] = [line for line in run.stderr.splitlines() if line.startswith("tfdist: gs://")]
    assert line.startswith(f"tfdist: {message}")
    assert "Traceback" not in run.stderr
