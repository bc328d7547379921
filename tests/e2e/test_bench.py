"""Measure configs by the command that a user types: on real clusters, of which nothing is left."""

import importlib.util
import json
import os
from pathlib import Path

import pytest
import yaml

import proc
from commands import tfdist

CONFIGS = Path(__file__).parents[2] / "configs"
PARTS = {"input", "compute", "exchange", "wait", "rest"}


@pytest.fixture(scope="module")
def environ(tmp_path_factory, cache):
    folder = tmp_path_factory.mktemp("own")
    (folder / "own_model.py").write_text(
        "import tensorflow as tf\n"
        "def build(image_shape, classes):\n"
        "    layers = tf.keras.layers\n"
        "    body = [layers.Rescaling(1 / 255), layers.Flatten(), layers.Dense(32, 'relu')]\n"
        "    return tf.keras.Sequential([tf.keras.Input(image_shape), *body, layers.Dense(classes)])\n"
    )
    # Absolute, for it is started in another folder.
    others = [
        str(Path(each).absolute()) for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each
    ]
    return {"PYTHONPATH": os.pathsep.join([str(folder), *others]), "TFDIST_CACHE_DIR": cache}


@pytest.fixture
def bench(environ, tmp_path):
    """Measure a shipped config with a small model; give what was printed and written."""
    temporary, work = tmp_path / "temporary", tmp_path / "work"
    temporary.mkdir()
    work.mkdir()

    def run(name, *flags):
        written = tmp_path / "found.json"
        words = [
            "--config",
            CONFIGS / f"{name}.yaml",
            "--set=data.name=digits",
            "--set=model.name=own_model:build",
        ]
        words += ["--rounds=1", "--json", written, *flags]
        done = tfdist("bench", *words, cwd=work, TMPDIR=str(temporary), **environ)
        assert done.returncode == 0, done.stdout + done.stderr
        assert list(temporary.iterdir()) == list(work.iterdir()) == []
        assert proc.naming(temporary) == []
        return done.stdout, json.loads(written.read_text())

    return run


def _check(row, examples_a_step):
    for sample in row["samples"]:
        for record in sample["records"]:
            # Counted, and so exact: a step has just as many examples as the config says.
            assert record["examples_per_second"] * record["step"] == pytest.approx(examples_a_step)
            assert all(seconds > 0 for seconds in record["computing"].values())
            assert all(seconds >= 0 for seconds in record["processors"].values())
    parts = row["seconds_of_a_step"]
    assert set(parts) == PARTS
    assert all(seconds is None or seconds >= 0 for seconds in parts.values())
    steps = [record["step"] for sample in row["samples"] for record in sample["records"]]
    assert sum(seconds or 0 for seconds in parts.values()) == pytest.approx(sum(steps) / len(steps))


def test_one_process_is_measured_and_nothing_is_left(bench, tmp_path):
    plot = tmp_path / "plot.png"
    flags = [f"--plot={plot}"] if importlib.util.find_spec("matplotlib") else []
    printed, found = bench("local", "--steps=20", "--warmup=10", *flags)
    [row] = found["rows"]
    assert (row["name"], row["workers"], found["strategy"]) == ("one process", 1, "one_device")
    _check(row, 128)
    [record] = row["samples"][0]["records"]
    assert record["exchange"] == "none"
    assert record["moving"] == record["waiting"] == 0
    assert record["sent"] == {}
    assert row["seconds_of_a_step"]["compute"] > 0
    assert row["derived"] == []
    assert "one process" in printed
    assert f"bound by {found['bound_by']}, " in printed
    if flags:
        assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.again  # the test below measures the same cluster
def test_two_workers_tell_what_their_ring_takes(bench):
    _, found = bench("mwms2w", "--steps=10", "--warmup=5")
    names = [row["name"] for row in found["rows"]]
    assert names[:2] == ["one process", "2 workers"]
    for row in found["rows"]:
        _check(row, 128)
    records = found["rows"][1]["samples"][0]["records"]
    assert [each["task"] for each in records] == ["worker:0", "worker:1"]
    for each in records:
        assert each["exchange"] == "ring"
        # Of two tasks, each sends as many bytes as the gradients have, and what is small besides.
        [(task, sent)] = each["sent"].items()
        assert task == each["task"]
        assert 0.99 * each["parameters"] <= sent < 1.1 * each["parameters"]
        assert each["moving"] > 0
        assert 0 <= each["agreeing"] <= each["asked"]
    assert found["rows"][1]["derived"] == []


@pytest.mark.slow
def test_what_is_tried_is_listed_and_what_is_advised_is_a_config(bench):
    printed, found = bench(
        "mwms2w",
        "--steps=10",
        "--warmup=5",
        "--tune",
        "--only=train.jit_compile",
        "--only=communication.dtype",
    )
    base, *same = found["same"]
    assert (base["name"], base["ratios"]) == ("the config as it is", [1.0])
    assert [each["name"] for each in same] == ["train.jit_compile=true"]
    assert [each["name"] for each in found["other"]] == [
        f"communication={{implementation: tcp, dtype: {dtype}}}" for dtype in ("bfloat16", "int8")
    ]
    for each in [*same, *found["other"]]:
        assert each["name"] in printed
        assert not each["refused"]
        assert len(each["ratios"]) == 1
        assert each["ratios"][0] > 0
    assert set(yaml.safe_load(found["yaml"]) or {}) <= {"train"}
    for line in found["yaml"].splitlines():
        assert line in printed
