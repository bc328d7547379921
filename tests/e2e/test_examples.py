import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("launcher", "strategy"),
    [
        ([], r"OneDeviceStrategy"),
        (["--workers=2"], r"MultiWorkerMirrored"),
        (["--workers=2", "--ps=1"], r"ParameterServerStrategyV2"),
    ],
)
def test_one_keras_script_runs_on_every_kind_of_cluster(launcher, strategy, tmp_path):
    command = [sys.executable, str(EXAMPLES / "keras_script.py")]
    if launcher:
        command = [sys.executable, "-m", "tfdist.launch", *launcher, f"--run_dir={tmp_path}", "--", *command]
    run = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stdout + run.stderr
    accuracy, used = re.search(r"accuracy (\d\.\d+) with (\w+)", run.stdout).groups()
    assert float(accuracy) > 0.85
    assert re.fullmatch(strategy, used)
