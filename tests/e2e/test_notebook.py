"""Clusters from a notebook, whose cells a real kernel executes."""

import re
import sys
import tempfile
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from traitlets.config import Config

from tfdist.errors import ConfigError
from tfdist.launcher.notebook import notebook_launcher

_ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_example_and_the_page_train_on_workers_and_with_the_kernel_as_chief(tmp_path):
    notebook = nbformat.read(_ROOT / "examples" / "notebook.ipynb", as_version=4)
    page = (_ROOT / "docs" / "notebook.md").read_text()
    notebook.cells += map(nbformat.v4.new_code_cell, re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    resources = {"metadata": {"path": str(tmp_path)}}
    # A short path: the name of a socket may have 107 characters. Ports of the kernel may be taken before it starts.
    with tempfile.TemporaryDirectory(prefix="kernel") as folder:
        config = Config({"KernelManager": {"transport": "ipc", "ip": f"{folder}/socket"}})
        options = {"timeout": 600, "startup_timeout": 600, "resources": resources, "config": config}
        NotebookClient(notebook, **options).execute()
    launched, as_chief = (notebook.cells[place] for place in (2, 4))
    shown = "".join(output.text for output in launched.outputs if output.output_type == "stream")
    assert "[worker:0] Epoch 3/3" in shown
    assert _result(launched) == "('MultiWorkerMirrored', True)"
    assert _result(as_chief) == "('ParameterServer', True)"
    assert {path.name for path in tmp_path.glob("runs/start-*/logs/*")} == {
        "ps-0.log",
        "worker-0.log",
        "worker-1.log",
    }
    assert "array(" in _result(notebook.cells[-1])


def test_the_result_is_that_of_the_chief(tmp_path):
    def which_task(add):
        import json
        import os

        return json.loads(os.environ["TF_CONFIG"])["task"]["index"] + add

    assert notebook_launcher(which_task, (40,), workers=2, run_dir=tmp_path) == 40


def test_what_cannot_be_sent_is_refused_in_a_line():
    with pytest.raises(
        ConfigError, match=r"the function cannot be sent: .*Create models and data sets, and open files"
    ):
        notebook_launcher(lambda stream: stream, (sys.stdout,))
    with pytest.raises(ConfigError, match=r"expected a function, received 'script\.py'"):
        notebook_launcher("script.py")


def _result(cell):
    return next(
        output.data["text/plain"] for output in cell.outputs if output.output_type == "execute_result"
    )
