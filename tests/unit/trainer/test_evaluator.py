"""The evaluator's checkpoints, as they come."""

import pytest
import tensorflow as tf

from tfdist.trainer import evaluator
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
    monkeypatch.setattr(evaluator.time, "sleep", lambda _: written(3))
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
