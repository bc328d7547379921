"""The evaluator's checkpoints, as they come."""

import time
import types

import numpy as np
import pytest
import tensorflow as tf

from tfdist import ClusterConfig
from tfdist.errors import DataError
from tfdist.launcher.record_events import listening
from tfdist.trainer import evaluator, evaluator_notes
from tfdist.trainer.config import read_config
from tfdist.trainer.run_folder import RunFolder
from tfdist.training.checkpoints.checkpoint_files import save


def test_a_damaged_checkpoint_is_evaluated_when_it_has_been_written_anew(tmp_path, monkeypatch, caplog):
    def written(step):
        save(tmp_path, step, {"a": tf.constant(1.0)}, {})

    for step in (1, 2, 3):
        written(step)
    for step in (2, 3):
        (tmp_path / str(step) / "variables.index").write_bytes(b"")
    monkeypatch.setattr(evaluator, "_SECONDS_BETWEEN_LOOKS", 0.01)
    coming = evaluator._new_checkpoints(tmp_path, 3, "127.0.0.1:1")
    assert next(coming).step == 1
    # Not `time` itself: a thread that an earlier test has left may sleep too.
    clock = types.SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: written(3))
    monkeypatch.setattr(evaluator, "time", clock)
    assert next(coming).step == 3
    with pytest.raises(StopIteration):
        next(coming)
    assert [each.message for each in caplog.records] == [
        "step 2: variables.index is damaged",
        "step 3: variables.index is damaged",
    ]


def test_the_checkpoint_at_which_a_callback_has_stopped_the_training_is_the_last(tmp_path):
    for step in (1, 2, 3):
        save(tmp_path, step, {"a": tf.constant(1.0)}, {"is_stopped": step == 2})
    coming = evaluator._new_checkpoints(tmp_path, 4, "127.0.0.1:1", may_stop=True)
    assert [each.step for each in coming] == [1, 2]
    on = evaluator._new_checkpoints(tmp_path, 3, "127.0.0.1:1")  # as without callbacks, which train on
    assert [each.step for each in on] == [1, 2, 3]


def test_refuses_a_checkpoint_of_a_run_on_other_data(tmp_path, cache, monkeypatch):
    monkeypatch.setenv("TFDIST_CACHE_DIR", str(cache))
    images, labels = np.zeros((4, 28, 28), np.uint8), np.arange(4)
    np.savez(tmp_path / "own.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    config = tmp_path / "x.yaml"
    config.write_text(f"data: {{name: {tmp_path}/own.npz, batch_size: 2}}\ntrain: {{steps: 2}}\n")
    folder = RunFolder.at(tmp_path / "run")
    trained = {"data.name": "mnist", "data.fingerprint": "0123456789ab"}
    save(folder.checkpoints, 2, {"a": tf.constant(1.0)}, {"trained": trained})
    cluster = ClusterConfig.local(workers=1, evaluator=1).with_task("evaluator", 0)
    with pytest.raises(DataError, match=r"that of the run, 'mnist' 0123456789ab; here it is '.*own\.npz' "):
        evaluator.evaluate_checkpoints(read_config(config).config, cluster, folder)


def test_the_chief_reads_each_note_of_the_evaluator_once(tmp_path, monkeypatch):
    folder, read, seen = RunFolder.at(tmp_path), [], []
    folder.evaluations_file.parent.mkdir(parents=True, exist_ok=True)
    notes = evaluator_notes.EvaluatorNotes(folder)
    read_event = evaluator_notes.read_event
    monkeypatch.setattr(evaluator_notes, "read_event", lambda line: read.append(line) or read_event(line))
    with listening(seen.append):
        for step in range(20):
            evaluator_notes.note_results(folder, step, {"loss": 1.0})
            notes.record_new()
        with open(folder.evaluations_file, "ab") as file:  # a line that is not whole yet
            file.write(b'{"event": "evaluated", "step": 20, ')
            file.flush()
            notes.record_new()
            file.write(b'"results": {}}\n')
        notes.record_new()
    assert [event.step for event in seen] == list(range(21))
    assert len(read) == 21
