import json
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
        pytest.param(["--workers=2", "--ps=1"], r"ParameterServer", marks=pytest.mark.slow),
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


@pytest.mark.slow
def test_an_ensemble_is_trained_member_by_member_on_different_tasks(tmp_path):
    script = [sys.executable, str(EXAMPLES / "ensemble.py")]
    launch = [sys.executable, "-m", "tfdist.launch", "--job=member=2", f"--run_dir={tmp_path}", "--"]
    run = subprocess.run([*launch, *script], capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stdout + run.stderr
    alone, together = map(
        float, re.search(r"error: ([\d.]+) by one member, ([\d.]+) by 8", run.stdout).groups()
    )
    assert together < alone < 0.2


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [["--workers=2", "--ps=1"], ["--workers=2"]])
def test_the_curve_of_two_workers_lies_on_that_of_one_process(launcher, tmp_path):
    """The 2016 classic: y = e^x, learned by averaging the gradients of a master's two workers."""
    script = [sys.executable, str(EXAMPLES / "exp_data_parallel.py")]
    alone, together = tmp_path / "alone.json", tmp_path / "together.json"
    start = [sys.executable, "-m", "tfdist.launch", *launcher, f"--run_dir={tmp_path / 'run'}", "--"]
    for command in ([*script, "--curve", alone], [*start, *script, "--curve", together]):
        run = subprocess.run(command, capture_output=True, text=True, timeout=240)
        assert run.returncode == 0, run.stdout + run.stderr
    one, other = json.loads(alone.read_text()), json.loads(together.read_text())
    assert one[-1] < one[0] / 100
    assert other == pytest.approx(one, rel=1e-10)  # float64: another order of sums, 200 steps long
