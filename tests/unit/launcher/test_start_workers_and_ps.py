"""The tasks that a script starts beside itself get its options."""

import json
import os

from tfdist.launcher import start_workers_and_ps
from tfdist.launcher.environment import SECRET

# In the place of tfdist in the tasks.
TFDIST = """
import json, os
from pathlib import Path
def start(**options):
    task = json.loads(os.environ["TF_CONFIG"])["task"]["type"]
    Path(__file__).with_name(f"{task}.json").write_text(json.dumps(options))
"""


def test_the_tasks_start_with_the_options(tmp_path, monkeypatch):
    (tmp_path / "tfdist.py").write_text(TFDIST)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv(SECRET, "a secret of this test alone")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(start_workers_and_ps, "_processes", [])
    options = {"device": "cpu", "memory_growth": True, "heartbeat_timeout": 7.5}
    cluster = start_workers_and_ps.start_servers(1, 1, tmp_path, options)
    assert cluster.is_chief
    for process in start_workers_and_ps._processes:
        process.wait(60)
        process.stdin.close()
    assert [json.loads((tmp_path / f"{role}.json").read_text()) for role in ("worker", "ps")] == [options] * 2
    assert os.listdir(tmp_path / "logs")
