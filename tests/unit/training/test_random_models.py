"""Models that are drawn by chance have the numbers of Keras's own fit on two devices."""

from pathlib import Path

import pytest

tf = pytest.importorskip("tensorflow")

from commands import python  # noqa: E402  # after the check that TensorFlow is there

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "random_models.py"


@pytest.mark.slow
@pytest.mark.skipif(tf.keras.__version__ < "3", reason="the models are those of Keras 3")
def test_a_few_of_them_have_the_numbers_of_kerass_own_fit():
    run = python(SCRIPT, "--seeds", "0:4")
    assert run.returncode == 0, run.stdout + run.stderr
    assert "models have the numbers of Keras's own fit" in run.stdout
