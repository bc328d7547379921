"""What a disk does to a run: it is full, or its folders are removed."""

import os
import shutil
import signal

import pytest
from harms import DiskFull, fill, small_disk
from proofs import prove_exact, prove_nothing_left
from setups import config
from training import Training

import proc
from tfdist.errors import LOST

pytestmark = pytest.mark.faults


@pytest.fixture
def disk(tmp_path):
    """Mount a small disk as a run's folder, and unmount it after the test."""
    if why := DiskFull.why_not():
        pytest.skip(why)
    folder = tmp_path / "run"
    folder.mkdir()
    with small_disk(folder):
        yield folder


@pytest.mark.parametrize(
    ("name", "replicas"),
    [pytest.param("one_device", 1, marks=pytest.mark.again), ("multi_worker_mirrored", 2)],
)
def test_a_disk_that_is_full_is_said_and_gone_on_from(name, replicas, disk, tmp_path, cache):
    with Training(tmp_path, config(name), cache) as training:
        training.gates.allow(50)
        training.start()
        training.until(lambda: training.newest() >= 40, "some steps are done")
        ballast = fill(disk)
        training.gates.allow()
        assert training.end() == 2, training.tail()
        assert f"tfdist: {disk}" in training.said()
        assert "No space left on device" in training.said()
        # TensorFlow may write all it knows of the other worker, which meets the end of this one.
        lines = [line for line in training.said().splitlines() if not line.startswith("[worker:1]")]
        assert not [line for line in lines if "Traceback" in line]
        safe = training.newest()
        ballast.unlink()
        training.start()
        assert training.end() == 0, training.tail()
    assert [each["at_step"] for each in training.history()] == [0, safe]
    prove_exact(training, replicas)
    prove_nothing_left(training)


@pytest.mark.parametrize("is_writing", [False, True])
def test_a_run_whose_checkpoints_are_removed_says_so_or_goes_on(is_writing, tmp_path, cache):
    """Between two checkpoints nobody needs the folder; what writes into it cannot do without."""
    with Training(tmp_path, config("one_device"), cache) as training:
        training.start()

        def is_stopped_there():
            assert training.status() is None, training.tail()
            proc.stop(training.process.pid)
            partial = [training.run / "checkpoints" / name for name in training.partial("checkpoints")]
            # A partial folder may also be one that is removed, or whose checkpoint has its name already. TensorFlow
            # makes an empty one again if it is gone.
            written = [path for folder in partial for path in folder.iterdir() if path.name.isdigit()]
            is_written = any(any(path.iterdir()) for path in written)
            if training.newest() >= 40 and (is_written if is_writing else not partial):
                return True
            os.kill(training.process.pid, signal.SIGCONT)
            return False

        training.until(is_stopped_there, "the moment has come")
        shutil.rmtree(training.run / "checkpoints")
        os.kill(training.process.pid, signal.SIGCONT)
        status = training.end()
        assert status == (LOST if is_writing else 0), training.tail()
        if is_writing:
            assert f"tfdist: {training.run / 'checkpoints'}" in training.said()
            assert "Traceback" not in training.said()
            training.start()
            assert training.end() == 0, training.tail()
    assert training.report()["starts"] == 1
    prove_exact(training, 1)
    prove_nothing_left(training)
