"""Paths that cannot be looked at, homes that do not exist, and a current folder that was removed: one line each."""

import errno
import os
import pwd
import sys
import tempfile
from pathlib import Path

import pytest

from tfdist._utils.check_and_expand_paths import default_cache_dir
from tfdist._utils.read_untrusted_files import glob_free_path
from tfdist._utils.readable_text import short_path
from tfdist._utils.write_files import write_output
from tfdist.cli import bench, configs, doctor, init, predict, report, train
from tfdist.cli import launch as launch_command
from tfdist.cli._end_of_run import page_written
from tfdist.cli._job_from_command_line import requested
from tfdist.cluster.config import ClusterConfig
from tfdist.datasets.open_data import open_data
from tfdist.diagnostics.doctor.check_machine import existing_parent
from tfdist.diagnostics.doctor.parts_of_run_records import Plan
from tfdist.diagnostics.environment import describe_environment
from tfdist.engines.job_handle_and_state import Handle
from tfdist.engines.ssh import task_on_host
from tfdist.engines.submitted_jobs import find_submission, state_folder, submissions
from tfdist.errors import ConfigError, DataError, StorageError, TfdistError
from tfdist.export.export_folder import find_export
from tfdist.launcher.console import ScreenOptions
from tfdist.launcher.launch_tasks import launch
from tfdist.profiling.tensorflow_profiler import Recorder
from tfdist.trainer.config import read_config
from tfdist.trainer.new_project_answers import check_answer
from tfdist.trainer.run_folder import find_run_folder
from tfdist.trainer.shipped_configs import copy_config, shipped_configs
from tfdist.training import save
from tfdist.training.checkpoints.checkpoint_callback import CheckpointAndResume

DEEP = "/tmp/" + "a/" * 2500 + "x"  # longer than a path may be, which is an error for root too
NOBODY = "~nobody-of-that-name/x"
CONFIG = str(shipped_configs()["local"])


@pytest.fixture
def removed_folder(tmp_path, monkeypatch):
    folder = tmp_path / "removed"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()


@pytest.mark.parametrize(
    ("use", "kind", "text"),
    [
        (lambda: read_config(DEEP), ConfigError, "cannot be read: File name too long"),
        (lambda: read_config("a" * 300), ConfigError, "cannot be read: File name too long"),
        (lambda: init.main([DEEP], where="here"), StorageError, "cannot be written: File name too long"),
        (lambda: write_output(Path("/"), b""), ConfigError, "output: expected a file, received the folder /"),
        (lambda: find_export(DEEP), ConfigError, "does not exist, or may not be read"),
        (lambda: predict._check_input(DEEP), ConfigError, "does not exist, or may not be read"),
        (lambda: predict._writable(DEEP, "--output"), ConfigError, "--output: there is no folder"),
        (lambda: check_answer("data", DEEP, {"where": "here"}), ConfigError, "--data: .* does not exist"),
        (lambda: open_data(DEEP), DataError, "cannot be found|does not exist, or may not be read"),
        (lambda: copy_config("local", Path(DEEP)), StorageError, "cannot be written: File name too long"),
    ],
)
def test_a_path_that_cannot_be_looked_at_is_one_line(use, kind, text):
    with pytest.raises(kind, match=text):
        use()


@pytest.mark.parametrize("number", [errno.ELOOP, errno.EACCES])  # root may look into all folders
def test_an_output_that_cannot_be_looked_at_is_one_line(tmp_path, monkeypatch, number):
    output = tmp_path / "output"
    if number == errno.ELOOP:
        output.symlink_to(output)
    else:
        monkeypatch.setattr(Path, "stat", _refuse)
        monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(StorageError, match="cannot be written: "):
        predict._writable(str(output), "--output")


def _refuse(path, **_):
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


def test_records_that_cannot_be_read_are_one_line(monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", DEEP)
    with pytest.raises(StorageError, match=r"cannot be read: File name too long\. Set XDG_STATE_HOME"):
        submissions()
    with pytest.raises(ConfigError, match="was not submitted"):
        find_submission(Handle.parse("slurm://x/1"))


def test_the_error_of_a_run_stays_where_there_is_no_page_to_write():
    with pytest.raises(ConfigError, match="the right one"), page_written(Path(DEEP), lambda: 1 / 0):
        raise ConfigError("run_dir", "the right one")


def test_the_nearest_folder_that_can_be_looked_at():
    assert existing_parent(Path(DEEP)) == Path("/tmp")


@pytest.mark.parametrize(
    ("use", "where"),
    [
        (lambda: init.main([NOBODY], where="here"), "FOLDER"),
        (lambda: find_export(NOBODY), "model"),
        (lambda: predict._check_input(NOBODY), "--input"),
        (lambda: predict._writable(NOBODY, "--grid"), "--grid"),
        (lambda: check_answer("data", NOBODY, {"where": "here"}), "--data"),
        (lambda: CheckpointAndResume(NOBODY), "CheckpointAndResume"),
        (lambda: find_run_folder(NOBODY, Path("runs"), {}), "--run_dir"),
        (lambda: launch_command.main(["true"], run_dir=NOBODY), "--run_dir"),
    ],
)
def test_the_home_of_nobody_is_one_line(use, where):
    with pytest.raises(ConfigError, match=f"^{where}: no home folder is known for '~nobody-of-that-name/x'"):
        use()


def test_outputs_may_be_named_from_the_home_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_run_folder("~/runs/x", Path("runs"), {}).root == tmp_path / "runs" / "x"
    _, job, _ = requested(["local"], config=CONFIG, run_dir="~/runs")
    assert job.folder == tmp_path / "runs"
    configs.main(["local"], output="~/mine.yaml")
    assert (tmp_path / "mine.yaml").exists()
    launch_command.main(
        [sys.executable, "-c", ""], workers=1, run_dir="~/launched", network_isolation="never"
    )
    report.main(["~/launched"], output="~/page.html")
    assert (tmp_path / "page.html").exists()
    monkeypatch.setattr("tfdist.benchmark.scaling.measure_scaling", lambda *_: None)
    monkeypatch.setattr("tfdist.benchmark.report.show_scaling", lambda _: None)
    monkeypatch.setattr("tfdist.benchmark.report.as_values", lambda _: {})
    monkeypatch.setattr(bench, "prepare_data", lambda _: None)
    bench.main(CONFIG, json="~/times.json")
    assert (tmp_path / "times.json").exists()


@pytest.mark.parametrize(
    ("folder", "usual", "variable"),
    [
        (default_cache_dir, "XDG_CACHE_HOME", "TFDIST_CACHE_DIR"),
        (state_folder, "XDG_STATE_HOME", "XDG_STATE_HOME"),
    ],
)
def test_without_a_home_the_error_names_the_variable_to_set(monkeypatch, tmp_path, folder, usual, variable):
    def unknown(_):
        raise KeyError("no such user")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for name in ("HOME", usual, variable):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(
        ConfigError, match=f"no home folder is known for .*Set {variable} to a folder of yours"
    ):
        folder()
    monkeypatch.setenv(variable, str(tmp_path))
    assert folder().is_relative_to(tmp_path)


def test_the_doctor_finds_that_there_is_no_folder_for_temporary_files(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "check_software", lambda: (None, iter(())))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    *_, last = doctor._check(Plan(config=CONFIG), 1.0)
    assert (last.check, last.state) == ("temporary files", "failed")
    assert "set TMPDIR to a folder that you may write to" in last.remedy


def _enter(context):
    with context:
        pass


@pytest.mark.parametrize(
    "use",
    [
        pytest.param(lambda: _enter(glob_free_path(Path("/a*b"))), id="a link"),
        pytest.param(lambda: _enter(report._folder_of("gs://bucket/run")), id="report"),
        pytest.param(lambda: _enter(save._place_to_write("model.keras")), id="save"),
        pytest.param(lambda: Recorder("worker:0").begin(), id="profile"),
        pytest.param(lambda: task_on_host.main(["run"]), id="ssh"),
    ],
)
def test_without_a_folder_for_temporary_files_there_is_one_line(monkeypatch, tmp_path, use):
    monkeypatch.setattr(save, "is_chief", lambda: False)
    monkeypatch.setattr(task_on_host, "_read_order", lambda: (None, b""))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(StorageError, match=r"^temporary folder: cannot be made: No such file .*TMPDIR"):
        use()


@pytest.mark.usefixtures("removed_folder")
def test_whole_paths_need_no_current_folder(tmp_path, monkeypatch):
    trained = []
    monkeypatch.setattr(
        train, "_train", lambda settings, cluster, folder, screen: trained.append(folder.root)
    )
    train._main(CONFIG, (), str(tmp_path / "run"), None, False, False, ScreenOptions())
    assert trained == [tmp_path / "run"]
    assert short_path(tmp_path / "run") == str(tmp_path / "run")
    assert "free of" in describe_environment()["disk here"]
    launched = launch(
        ClusterConfig.local(workers=1), [sys.executable, "-c", "pass"], run_dir=tmp_path / "launched"
    )
    assert [each.code for each in launched.exits] == [0]


@pytest.mark.usefixtures("removed_folder")
@pytest.mark.parametrize("run_dir", [None, "run"])
def test_other_paths_without_a_current_folder_are_one_line(run_dir):
    with pytest.raises(TfdistError, match="in the current folder, which was removed"):
        find_run_folder(run_dir, Path("runs", "x"), {})


def test_a_path_is_short_from_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert short_path(tmp_path / "runs" / "x") == "runs/x"
    assert short_path("runs/x") == "runs/x"


def test_a_command_that_is_not_utf_8_is_refused_before_anything_is_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"^command line: '.udcff' is not UTF-8"):
        launch_command.main(command=["sh", "-c", "\udcff"])
    assert list(tmp_path.iterdir()) == []


def test_a_stream_is_written_into_where_its_folder_is_not_writable(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "fifo")
    monkeypatch.setattr(os, "access", lambda *_: False)  # as for all users but root
    for name in ("/dev/stdout", "/dev/fd/1", "/dev/null", str(tmp_path / "fifo")):
        assert predict._writable(name, "--output") == Path(name)
    with pytest.raises(StorageError, match="Permission denied"):
        predict._writable(str(tmp_path / "a file"), "--output")
