"""TensorFlow's notes at its start stay off the screen, and what matters does not."""

import os
import subprocess
import sys

import pytest

_SCRIPT = """
import os, sys
sys.path.insert(0, os.environ["FAKES"])
from tfdist.cli import _load_tensorflow_quietly
_load_tensorflow_quietly.own_gpus = lambda: []
os.environ.setdefault("TFDIST_CACHE_DIR", os.environ["FAKES"])
exec(os.environ["CODE"])
print("after", file=sys.stderr, flush=True)
"""
_LOAD = "_load_tensorflow_quietly.load_tensorflow_quietly(); import tensorflow"
_OPEN = """
from tfdist.cli._prepare_data import prepare_data
from tfdist.errors import DataError
from tfdist.trainer.config import read_config
for name in ("/no/data", os.environ["FAKES"]):
    try:
        prepare_data(read_config("configs/ps2w.yaml", ["data.if_unavailable=fail", "data.name=" + name]))
    except (DataError, AttributeError):
        pass
    print("tensorflow" in sys.modules, file=sys.stderr)
"""
_FAKE = """
import os
os.write(2, b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\\n")
os.write(2, b"I0000 00:00:1795731869.673216   30621 port.cc:153] oneDNN custom operations are on.\\n")
os.write(2, b"a warning of a library\\n")
if "DIES" in os.environ:
    os.write(2, b"The TensorFlow library was compiled to use AVX instructions\\n")
    os.abort()
class config:
    def list_physical_devices():
        os.write(2, b"E0000 00:00:1795731876.09   30621 cuda_platform.cc:52] failed call to cuInit: UNKNOWN\\n")
"""


def _said(folder, code=_LOAD, **variables):
    (folder / "tensorflow.py").write_text(_FAKE)
    environ = {**os.environ, "FAKES": str(folder), "CODE": code, "TF_CPP_MIN_LOG_LEVEL": "2", **variables}
    command = [sys.executable, "-c", _SCRIPT]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)


def test_notes_are_left_out_and_all_else_is_written(tmp_path):
    run = _said(tmp_path)
    assert (run.returncode, run.stderr) == (0, "a warning of a library\nafter\n")


def test_who_asks_for_the_notes_gets_them(tmp_path):
    run = _said(tmp_path, TF_CPP_MIN_LOG_LEVEL="0")
    assert "oneDNN custom operations" in run.stderr


def test_the_last_words_of_a_tensorflow_that_aborts_are_written(tmp_path):
    run = _said(tmp_path, DIES="1")
    assert run.returncode < 0
    assert "compiled to use AVX instructions" in run.stderr
    assert "oneDNN" not in run.stderr


def test_a_launcher_that_prepares_data_is_quiet_and_one_that_does_not_loads_no_tensorflow(tmp_path):
    run = _said(tmp_path, _OPEN)
    assert (run.returncode, run.stderr) == (0, "False\na warning of a library\nTrue\nafter\n")


@pytest.mark.slow
def test_a_command_of_one_process_is_quiet():
    command = ["train", "--dry_run", "--config=configs/local.yaml"]
    environ = {key: value for key, value in os.environ.items() if key != "TF_CPP_MIN_LOG_LEVEL"}
    run = subprocess.run(
        [sys.executable, "-m", "tfdist", *command], env=environ, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr
    assert not [
        line for line in run.stderr.splitlines() if line.startswith(("I0000", "E0000", "WARNING: All"))
    ]
