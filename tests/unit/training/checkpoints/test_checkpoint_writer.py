"""Checkpoints that are written while training goes on: what they hold, their order, and what is said of errors."""

import logging
import threading

import numpy as np
import pytest

from tfdist.errors import StorageError
from tfdist.training.checkpoints.checkpoint_writer import CheckpointWriter

SECONDS = 60


def _refuse():
    raise StorageError("the disk", "is full", remedy="Free some space")


def test_training_goes_on_while_a_checkpoint_is_written_and_the_next_one_waits(tmp_path):
    may_end, written = threading.Event(), []

    def first():
        assert may_end.wait(SECONDS)
        written.append(1)

    with CheckpointWriter(tmp_path, keep=1, background=True) as writer:
        writer.write(first)
        assert not written
        threading.Timer(0.1, may_end.set).start()
        writer.write(lambda: written.append(2))
        assert written[0] == 1
    assert written == [1, 2]


def test_without_a_background_it_is_written_at_once(tmp_path):
    written = []
    with CheckpointWriter(tmp_path, keep=1, background=False) as writer:
        writer.write(lambda: written.append(1))
        assert written == [1]
        with pytest.raises(StorageError):
            writer.write(_refuse)


def test_an_error_is_raised_by_the_next_call_or_at_the_end(tmp_path):
    writer = CheckpointWriter(tmp_path, keep=1, background=True)
    writer.write(_refuse)
    with pytest.raises(StorageError, match="is full"):
        writer.write(_refuse)
    writer.wait()  # for nothing: the second one was not written
    writer.write(_refuse)
    with pytest.raises(StorageError, match="is full"), writer:
        pass


def test_the_error_that_ends_a_run_comes_first(caplog, tmp_path):
    writer = CheckpointWriter(tmp_path, keep=1, background=True)
    writer.write(_refuse)
    with caplog.at_level(logging.WARNING, "tfdist"), pytest.raises(KeyError), writer:
        raise KeyError("of the training")
    assert "the disk: is full" in caplog.text


def test_what_is_written_is_not_changed_by_training():
    tf = pytest.importorskip("tensorflow")
    from tfdist.training.checkpoints.checkpoint_files import snapshot

    array = np.ones(1000)
    variables = {name: tf.Variable(tf.ones([1000])) for name in ("assigned", "added", "scattered", "trained")}
    kept = snapshot({"array": array, **variables})
    array += 1
    variables["assigned"].assign(tf.zeros([1000]))
    variables["added"].assign_add(tf.ones([1000]))
    variables["scattered"].scatter_add(tf.IndexedSlices(tf.ones([2]), [0, 999]))
    optimizer = tf.keras.optimizers.Adam(0.5)
    for _ in range(2):
        optimizer.apply_gradients([(tf.ones([1000]), variables["trained"])])
    assert all(np.unique(value.numpy()).tolist() == [1] for value in kept.values())
    assert all(not np.array_equal(variable.numpy(), np.ones(1000)) for variable in variables.values())
