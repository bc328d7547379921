"""Write what the trained model answers for the test images, for the run's page: `RUN/report/`.

answers.json    how often it took each class for each other one, and its surest mistakes
mistake-0.png   the image of the first of these mistakes, and so on
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tfdist._utils.write_files import fresh_folder, write_json
from tfdist.models.logits_or_probabilities import Outputs

_MOST_MISTAKES = 24
_LONGEST_SIDE = 96  # of an image on the page, in pixels
_IMAGES_AT_ONCE = 500


def classify(model: Any, images: Any, outputs: Outputs) -> tuple[Any, Any]:
    """Return the class of each image, and the probability that the model assigns to it.

    Args:
        model: A Keras model whose variables are all in this process.
        images: uint8 pixels.
        outputs: What the model returns.
    """
    answers, probabilities = [], []
    for start in range(0, len(images), _IMAGES_AT_ONCE):
        values = np.asarray(model.predict_on_batch(images[start : start + _IMAGES_AT_ONCE]), np.float64)
        answers.append(np.argmax(values, axis=-1))
        if outputs == "logits":
            values = np.exp(values - values.max(axis=-1, keepdims=True))
            values /= values.sum(axis=-1, keepdims=True)
        probabilities.append(np.max(values, axis=-1))
    return np.concatenate(answers), np.concatenate(probabilities)


def write_answers(
    folder: Path, images: Any, labels: Any, answers: Any, probabilities: Any, classes: Sequence[str]
) -> None:
    """Replace a folder by the counts of all answers and the mistakes of which the model is surest.

    Args:
        folder: The folder.
        images: uint8 pixels of the test images.
        labels: Their classes.
        answers: The model's classes for them.
        probabilities: The probability that the model assigns to each answer.
        classes: The names of the classes.
    """
    labels, answers = np.asarray(labels), np.asarray(answers)
    probabilities = np.where(np.isfinite(probabilities), probabilities, 0.0)  # JSON has no NaN
    counts = Counter(zip(labels.tolist(), answers.tolist(), strict=True))
    wrong = np.flatnonzero(labels != answers)
    surest = wrong[np.argsort(-probabilities[wrong], kind="stable")][:_MOST_MISTAKES]
    mistakes = [
        {
            "label": int(labels[row]),
            "answer": int(answers[row]),
            "probability": round(float(probabilities[row]), 4),
            "row": int(row),
        }
        for row in surest
    ]
    with fresh_folder(folder) as partial:
        for number, row in enumerate(surest):
            _picture(np.asarray(images[row])).save(partial / f"mistake-{number}.png")
        write_json(
            partial / "answers.json",
            {
                "classes": list(classes),
                "counts": [[*pair, count] for pair, count in sorted(counts.items())],
                "mistakes": mistakes,
            },
        )


def _picture(pixels: Any) -> Image.Image:
    picture = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    picture.thumbnail((_LONGEST_SIDE, _LONGEST_SIDE))
    return picture
