"""TensorFlow's vector of functions with parts in other tasks does not move while threads read it."""

import sys

import pytest

from commands import tfdist

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forking")]
SCRIPT = """
import sys, keras, numpy as np, tfdist
strategy = tfdist.start("parameter_server")
print("CONNECTED", file=sys.stderr, flush=True)
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.BatchNormalization(), keras.layers.Dense(2)])
    model.compile("adam", "mse", metrics=["mae"])
x, y = np.ones((64, 4), np.float32), np.ones((64, 2), np.float32)
with tfdist.Traffic(strategy):
    tfdist.fit(model, x, y, batch_size=8, epochs=2, strategy=strategy, validation_data=(x, y))
"""


def test_the_vector_has_room_before_any_threads_use_it(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    told = {"TF_CPP_MIN_LOG_LEVEL": "0", "TF_CPP_VMODULE": "cluster_function_library_runtime=1"}
    words = ("--workers=2", "--ps=1", "--threads=1", f"--run_dir={tmp_path}", "--", sys.executable, script)
    run = tfdist("launch", *words, cwd=tmp_path, **told)
    assert run.returncode == 0, run.stderr
    before, _, after = next(tmp_path.glob("**/chief-0.log")).read_text().partition("CONNECTED")
    first, later = (text.count("CFLR::Instantiate") for text in (before, after))
    # A vector of C++ takes twice the room when it is full, and keeps it.
    assert first > 16
    assert 0 < later < 32 - first
