"""`tfdist train` in a process that no launcher has started."""

import json
import logging
import os

import pytest

from tfdist.cli import train
from tfdist.launcher.record_events import record
from tfdist.launcher.run_events import Progressed
from tfdist.trainer.config import read_config


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """Return what `tfdist train` sets and trains with a section `launch`, up to the training itself."""

    def run(section, **environ):
        for name in ("TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS"):
            monkeypatch.setenv(name, "7")
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        (tmp_path / "x.yaml").write_text(f"launch: {section}")
        threads = []
        monkeypatch.setattr("tfdist.trainer.run_task.train", lambda *_: threads.append(_threads()))
        assert read_config(tmp_path / "x.yaml")
        train.main(str(tmp_path / "x.yaml"), run_dir=str(tmp_path / "run"))
        return threads[0]

    return run


def _threads():
    return os.environ["TF_NUM_INTRAOP_THREADS"], os.environ["OMP_NUM_THREADS"]


@pytest.mark.parametrize(
    ("section", "environ", "threads"),
    [
        ("{threads: 3}", {}, "3"),
        ("{}", {}, "7"),
        ("{threads: 3}", {"TFDIST_LAUNCH": "x"}, "7"),
        ("{threads: 3}", {"TFDIST_ENGINE": "1"}, "7"),
    ],
)
def test_it_has_the_threads_of_the_config_unless_a_launcher_or_an_engine_has_set_them(
    trained, section, environ, threads
):
    assert trained(section, **environ) == (threads, threads)


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("{pin: true, restarts: 5}", ["launch.pin, launch.restarts have no effect here: no launcher has started this process"]),
        ("{threads: 3, restarts: 3}", []),
    ],
)  # fmt: skip
def test_it_says_which_keys_have_no_effect(trained, caplog, section, said):
    with caplog.at_level(logging.INFO, logger="tfdist"):
        trained(section)
    assert [record.message for record in caplog.records if "no effect" in record.message] == said


@pytest.mark.parametrize(
    ("task", "environ", "is_shown"),
    [
        ("worker:0", {}, True),
        ("worker:1", {}, False),
        ("worker:0", {"TFDIST_PROGRESS": "x"}, False),
        ("worker:0", {"TFDIST_EVENTS": "x"}, False),
    ],
)
def test_the_chief_of_a_cluster_shows_progress_unless_a_launcher_does(
    tmp_path, monkeypatch, capsys, task, environ, is_shown
):
    (tmp_path / "x.yaml").write_text("cluster: {worker: ['127.0.0.1:1', '127.0.0.1:2']}")
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("tfdist.trainer.run_task.train", lambda *_: record(Progressed(step=3, steps=9)))
    train.main(str(tmp_path / "x.yaml"), run_dir=str(tmp_path / "run"), task=task, log_format="json")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["step"] for line in lines] == ([3] if is_shown else [])
