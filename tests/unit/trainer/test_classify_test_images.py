"""What the chief writes of the answers for the test images."""

import json

import numpy as np
from PIL import Image

from tfdist.trainer.classify_test_images import classify, write_answers


class _Model:
    def __init__(self, outputs):
        self._outputs = np.asarray(outputs, np.float32)

    def predict_on_batch(self, images):
        return self._outputs[: len(images)]


def test_logits_become_probabilities():
    images = np.zeros([2, 4, 4, 1], np.uint8)
    answers, probabilities = classify(_Model([[0.0, 1000.0], [0.0, 0.0]]), images, "logits")
    assert answers.tolist() == [1, 0]
    assert probabilities.tolist() == [1.0, 0.5]
    _, given = classify(_Model([[0.25, 0.75], [0.6, 0.4]]), images, "probabilities")
    assert np.allclose(given, [0.75, 0.6])


def test_counts_and_the_surest_mistakes_are_written(tmp_path):
    images = np.arange(4 * 200 * 100 * 3, dtype=np.uint32).astype(np.uint8).reshape(4, 200, 100, 3)
    labels, answers = np.array([0, 1, 1, 0]), np.array([0, 0, 0, 1])
    probabilities = np.array([0.9, 0.5, 0.8, 0.6])
    folder = tmp_path / "report"
    for _ in range(2):  # a run that is done once more replaces them
        write_answers(folder, images, labels, answers, probabilities, ["cat", "dog"])
    written = json.loads((folder / "answers.json").read_text())
    assert written["classes"] == ["cat", "dog"]
    assert written["counts"] == [[0, 0, 1], [0, 1, 1], [1, 0, 2]]
    assert [mistake["row"] for mistake in written["mistakes"]] == [2, 3, 1]
    assert written["mistakes"][0] == {"label": 1, "answer": 0, "probability": 0.8, "row": 2}
    assert sorted(path.name for path in folder.iterdir()) == [
        "answers.json",
        *(f"mistake-{number}.png" for number in range(3)),
    ]
    with Image.open(folder / "mistake-0.png") as picture:
        assert picture.size == (48, 96)


def test_an_answer_whose_probability_is_nan_is_no_sure_mistake(tmp_path):
    labels, answers, probabilities = np.array([1, 1]), np.array([0, 0]), np.array([np.nan, 0.5])
    write_answers(tmp_path / "report", np.zeros([2, 4, 4, 1], np.uint8), labels, answers, probabilities, "ab")
    text = (tmp_path / "report/answers.json").read_text()
    assert [mistake["row"] for mistake in json.loads(text)["mistakes"]] == [1, 0]
    assert "NaN" not in text


def test_grey_images_and_no_mistake(tmp_path):
    images = np.zeros([2, 8, 8, 1], np.uint8)
    ones = np.array([1, 1])
    write_answers(tmp_path / "right", images, ones, ones, np.array([1.0, 1.0]), "ab")
    assert json.loads((tmp_path / "right/answers.json").read_text())["mistakes"] == []
    write_answers(tmp_path / "wrong", images, ones, 1 - ones, np.array([1.0, 1.0]), "ab")
    with Image.open(tmp_path / "wrong/mistake-1.png") as picture:
        assert (picture.mode, picture.size) == ("L", (8, 8))
