"""The timelines of real clusters: a lane for each task, the steps that were asked for, and the order of time."""

import gzip
import json
import signal
import subprocess
import sys
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

from commands import SECONDS, tfdist

CONFIGS = Path(__file__).parents[2] / "configs"
DIGITS = ("--set=data.name=digits", "--set=evaluation.batches=2", "--set=train.steps_per_execution=1")
FILE = "timeline/timeline.json.gz"
pytestmark = pytest.mark.slow


def read(folder):
    """Return the metadata of a run's timeline, and the spans of each task in it."""
    trace = json.loads(gzip.decompress((folder / FILE).read_bytes()))
    names = {
        event["pid"]: event["args"]["name"]
        for event in trace["traceEvents"]
        if event["name"] == "process_name"
    }
    spans = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            spans[names[event["pid"]]].append(event)
    return trace["metadata"], dict(spans)


def named(spans, name):
    return [span for span in spans if span["name"] == name]


def end(span):
    return span["ts"] + span["dur"]


def window(spans):
    """Return when the first step of a task's spans began, and when the last one ended."""
    steps = [span for span in spans if span["name"].startswith("step ")]
    return min(step["ts"] for step in steps), max(map(end, steps))


def check_shares(about):
    for each in about["shares"]:
        assert sum(each["shares"].values()) == pytest.approx(1, abs=0.01), each


@pytest.fixture
def training(tmp_path):
    """Yield the folder of a run of mirrored workers that trains until the test is over."""
    folder = tmp_path / "run"
    words = [f"--config={CONFIGS}/mwms2w.yaml", *DIGITS, "--set=train.steps=100000", "--set=evaluation.every=100000"]  # fmt: skip
    words += ["--set=checkpoint.every=100000", f"--run_dir={folder}", "--profile=20:30"]
    with open(tmp_path / "output", "w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tfdist", "train", *words], stdout=output, stderr=subprocess.STDOUT
        )
    try:
        until = time.monotonic() + SECONDS
        while not (folder / FILE).exists():
            assert process.poll() is None, (tmp_path / "output").read_text()
            assert time.monotonic() < until, (tmp_path / "output").read_text()
            time.sleep(0.2)
        yield folder
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(SECONDS)


def test_mirrored_workers_are_recorded_by_steps_and_from_outside(training):
    about, spans = read(training)
    assert (about["first step"], about["last step"]) == (20, 30)
    assert about["clocks"]["aligned by"] == "one machine, one clock"
    check_shares(about)
    assert list(spans) == ["worker:0", "worker:1"]
    rounds = defaultdict(list)
    for each in spans.values():
        steps = [span for span in each if span["name"].startswith("step ")]
        assert [span["name"] for span in steps] == [f"step {number}" for number in range(20, 31)]
        assert all(end(before) <= after["ts"] for before, after in pairwise(steps))
        begin, over = window(each)
        inside = [span for span in named(each, "exchange") if begin <= span["ts"] and end(span) <= over]
        assert len(inside) >= 11  # at least one for each step
        assert named(each, "waiting for others")
        for span in named(each, "exchange"):
            rounds[span["args"]["round"]].append(span)
    # No worker has a sum before both have come to the exchange.
    met = [spans for spans in rounds.values() if len(spans) == 2]
    assert len(met) >= 11
    for one, other in met:
        assert max(one["ts"], other["ts"]) <= min(end(one), end(other))

    (training / FILE).unlink()
    run = tfdist("timeline", training, "--seconds=10")
    assert run.returncode == 0, run.stderr
    assert run.stdout.endswith(f"wrote {training / FILE}: open it in https://ui.perfetto.dev\n")
    about, spans = read(training)
    assert (about["seconds"], set(spans)) == (10.0, {"worker:0", "worker:1"})
    check_shares(about)
    for each in spans.values():
        begin, over = min(span["ts"] for span in each), max(map(end, each))
        assert named(each, "exchange")
        assert 0 <= begin <= over <= 60e6


@pytest.mark.again  # tests/unit/profiling merges recordings of a ps
def test_a_cluster_with_a_parameter_server_is_recorded(tmp_path):
    words = [f"--config={CONFIGS}/ps2w.yaml", *DIGITS, "--set=train.steps=34"]
    run = tfdist("train", *words, f"--run_dir={tmp_path}", "--profile=20:30")
    assert run.returncode == 0, run.stderr
    assert f"timeline of steps 20 to 30: {tmp_path / FILE}" in run.stdout
    about, spans = read(tmp_path)
    check_shares(about)
    assert list(spans) == ["chief:0", "worker:0", "worker:1", "ps:0"]
    numbers = [span["name"] for span in spans["chief:0"] if span["name"].startswith("step ")]
    assert numbers == [f"step {number}" for number in range(20, 31)]
    begin, over = window(spans["chief:0"])
    sent, received = {}, {}
    for task in ("worker:0", "worker:1", "ps:0"):
        for span in named(spans[task], "exchange"):
            assert begin <= end(span)
            assert span["ts"] <= over
            args = span["args"]
            pair = frozenset((task, args["other"]))
            {"sent": sent, "received": received}[args["way"]][args["message"], args["step"], pair] = span
    both = sent.keys() & received.keys()
    assert len(both) >= 11  # the variables of each step, at least
    for key in both:
        assert sent[key]["ts"] <= end(received[key])
    report = tfdist("timeline", tmp_path)
    assert (report.returncode, report.stdout) == (2, "")
    assert report.stderr == (
        f"tfdist: {tmp_path}: is the folder of a run that is done. "
        "Name one that trains, or train with --profile 20:30\n"
    )
