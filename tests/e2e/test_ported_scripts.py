"""Scripts as tutorials write them train on a cluster after two more lines."""

import difflib
import re
import sys
from pathlib import Path

import pytest

from commands import tfdist

_SCRIPTS = sorted((Path(__file__).parents[2] / "examples" / "ported").glob("*.py"))
_CLUSTERS = {
    "denoising_autoencoder": ("--workers=2",),
    "gan": ("--workers=2", "--ps=1"),
    "image_classification": ("--workers=2", "--ps=1"),
    "structured_data": ("--workers=2", "--ps=1"),
    "text_transformer": ("--workers=2", "--ps=1"),
    "time_series": ("--workers=2",),
}
_EVERY_TIME = "gan"  # it has the most parts: two optimizers, and a `train_step` of its own


@pytest.mark.slow
@pytest.mark.parametrize(
    "script",
    # What the others call on a cluster, tests/cluster calls too.
    [pytest.param(each, marks=[] if each.stem == _EVERY_TIME else [pytest.mark.again]) for each in _SCRIPTS],
    ids=lambda script: script.stem,
)
def test_a_ported_script_trains_on_a_cluster(script, tmp_path):
    cluster = _CLUSTERS[script.stem]
    run = tfdist("launch", *cluster, f"--run_dir={tmp_path}", "--", sys.executable, script, cwd=tmp_path)
    assert run.returncode == 0, run.stdout + run.stderr
    _check(script.stem, run.stdout)


@pytest.mark.parametrize("script", _SCRIPTS, ids=lambda script: script.stem)
def test_a_ported_script_differs_from_keras_by_two_lines(script):
    plain = [line for line in script.read_text().splitlines() if "tfdist" not in line]
    changes = [line for line in difflib.ndiff(plain, script.read_text().splitlines()) if line[0] in "+-"]
    assert changes == ["+ import tfdist", "+ tfdist.start()"]


def _check(name, shown):
    """Check what a script prints of its model: better than chance, and no more than it could be."""
    accuracy = re.search(r"test accuracy (\d\.\d+)", shown)
    error = re.search(r"mean absolute error (\d\.\d+)", shown)
    restored = re.search(r"error (\d\.\d+) before, (\d\.\d+) after", shown)
    if name == "gan":
        assert 0.1 < float(re.search(r"discriminator loss (\d\.\d+)", shown).group(1)) < 2
    elif restored:
        assert float(restored.group(2)) < float(restored.group(1)) / 2
    elif error:
        assert float(error.group(1)) < 0.3
    else:
        assert float(accuracy.group(1)) > 0.7
