"""The result of a function that a notebook runs as every task."""

import os
import sys

import pytest

from tfdist.launcher import notebook


@pytest.mark.parametrize(("code", "result"), [(None, [40]), (0, None)])
def test_a_function_that_ends_its_task_well_has_no_result(tmp_path, monkeypatch, code, result):
    def function(number):
        if code is not None:
            sys.exit(code)
        return [number]

    def launch(cluster, command, **options):
        monkeypatch.setitem(os.environ, "TF_CONFIG", cluster.with_task("worker", 0).tf_config_json())
        try:
            notebook.main(*command[3:])
        except SystemExit as end:
            assert end.code == 0

    monkeypatch.setattr(notebook, "launch", launch)
    assert notebook.notebook_launcher(function, (40,), run_dir=tmp_path) == result
