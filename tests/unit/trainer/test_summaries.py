import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tfdist.errors import StorageError
from tfdist.trainer.summaries import Summaries


def read(folder):
    events = EventAccumulator(str(folder))
    events.Reload()
    return {
        tag: [(each.step, tf.make_ndarray(each.tensor_proto)) for each in events.Tensors(tag)]
        for tag in events.Tags()["tensors"]
    }


def test_curves_have_a_point_a_step(tmp_path):
    summaries = Summaries(tmp_path, ("train", "test"))
    summaries.add("train", 10, {"loss": 2.0})
    summaries.add("train", 20, {"loss": 1.0})
    summaries.add("test", 20, {"loss": 1.5})
    summaries.close()
    assert read(tmp_path / "train") == {"loss": [(10, 2.0), (20, 1.0)]}
    assert read(tmp_path / "test") == {"loss": [(20, 1.5)]}


def test_answers_are_shown_as_a_matrix_and_as_pictures(tmp_path):
    summaries = Summaries(tmp_path, ("test",))
    images = np.arange(4, dtype=np.uint8)[:, None, None, None] * np.ones([4, 8, 8, 3], np.uint8)
    summaries.answers("test", 3, images, np.array([0, 1, 1, 0]), np.array([0, 1, 0, 0]), ["cat", "dog"])
    summaries.close()
    found = read(tmp_path / "test")
    [(step, table)] = found["confusion table"]
    assert step == 3
    assert table.item().decode().splitlines()[2:] == ["| cat | 2 | 0 |", "| dog | 1 | 1 |"]
    width, height, picture = found["confusion"][0][1]
    assert (int(width), int(height)) == (320, 320)
    matrix = tf.io.decode_png(picture).numpy()
    assert matrix[80, 80] == 0  # every cat was taken for one
    assert matrix[80, 240] == 255
    assert matrix[240, 80] == matrix[240, 240] > 0
    [_, _, *wrong] = found["wrong"][0][1]
    assert [tf.io.decode_png(each).numpy()[0, 0, 0] for each in wrong] == [2]


def test_a_folder_that_cannot_be_made_is_said(tmp_path):
    (tmp_path / "summaries").write_text("a file is in the way")
    with pytest.raises(StorageError, match="cannot be written"):
        Summaries(tmp_path / "summaries", ("train",))
