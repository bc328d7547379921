"""What a config names as `module:object` is found in the folder that one works in, from every command."""

import subprocess
import sys
from pathlib import Path

import pytest

from tfdist._utils.import_by_name import import_object
from tfdist.errors import ConfigError

SCRIPT = """
import sys
sys.path[:] = [path for path in sys.path if path]  # as the script `tfdist` is started
from tfdist._utils.import_by_name import import_object
print(import_object("mine.models:build", "model")())
"""


def test_the_folder_one_works_in_is_searched_from_a_script_too(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/models.py").write_text("def build():\n    return 'built'\n")
    script = tmp_path / "elsewhere" / "tfdist.py"
    script.parent.mkdir()
    script.write_text(SCRIPT.replace("sys.path[:]", "sys.path.remove(sys.path[0]); sys.path[:]"))
    path = str(Path(__file__).parents[3] / "src")
    run = subprocess.run(
        [sys.executable, script], cwd=tmp_path, env={"PYTHONPATH": path}, capture_output=True, text=True
    )

    assert run.stdout == "built\n", run.stderr


def test_a_module_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(ConfigError, match=r"model not_there:build: cannot be imported: No module named"):
        import_object("not_there:build", "model")
