"""`tfdist submit local` with a config: from the command line to the export, and continued after a cancel."""

import json

import pytest
from submitted import wait_for

import commands

pytestmark = pytest.mark.engines
SECONDS = 600


@pytest.fixture
def tfdist(tmp_path, cache):
    """Return a function that runs a command of tfdist's."""

    def run(*words):
        variables = {"XDG_STATE_HOME": str(tmp_path / "state"), "TFDIST_CACHE_DIR": cache}
        done = commands.tfdist(*words, cwd=tmp_path, seconds=SECONDS, **variables)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.mark.again
def test_a_config_trains_to_the_export(tfdist, tmp_path, config, local_loss):
    (tmp_path / "train.yaml").write_text(config)
    handle = tfdist("submit", "local", "--config", "train.yaml").strip()
    followed = tfdist("logs", handle, "--follow")
    assert "succeeded (exit status 0)" in tfdist("status", handle), followed[-5000:]
    assert "worker:1: tfdist: worker:1 serves at grpc://127.0.0.1:" in followed
    [run] = (tmp_path / "runs").iterdir()
    report = json.loads((run / "report.json").read_text())
    assert (report["steps"], report["test_loss"]) == (10, local_loss)
    assert "  step 10 of 10 (100 %)" in tfdist("status", handle)
    assert (run / "export" / "10" / "saved_model.pb").exists()


@pytest.mark.again
def test_one_process_is_cancelled_with_its_work_saved(tfdist, tmp_path):
    (tmp_path / "train.yaml").write_text(
        "data: {name: digits}\nmodel: {name: mnist_cnn}\ntrain: {steps: 100000}\ncheckpoint: {every: 10}\n"
    )
    handle = tfdist("submit", "local", "--config", "train.yaml").strip()
    [run] = (tmp_path / "runs").iterdir()
    wait_for(
        (run / "checkpoints" / "10").exists,
        lambda: tfdist("status", handle) + tfdist("logs", handle),
        seconds=SECONDS,
    )
    tfdist("cancel", handle)
    followed = tfdist("logs", handle, "--follow")
    assert "cancelled (exit status 138)" in tfdist("status", handle)
    assert "all is saved at step" in followed
