"""Write the curves and images of a run for TensorBoard: `tensorboard --logdir RUN`."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow import summary  # here, because TensorFlow loads it at the first use

from tfdist._utils.write_files import storage_errors

_MOST_IMAGES = 25


class Summaries:
    """The curves and images in a run's folder, by one or more writers with a name each."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        self._writers = {name: summary.create_file_writer(str(folder / name)) for name in names}

    def add(self, name: str, step: int, values: Mapping[str, float]) -> None:
        """Add a point to each of some curves."""
        with self._writing(name, step):
            for curve, value in values.items():
                summary.scalar(curve, np.float32(value))

    def answers(
        self, name: str, step: int, images: Any, labels: Any, answers: Any, classes: Sequence[str]
    ) -> None:
        """Write how often the model took each class for each other one, and images with wrong answers.

        Args:
            name: The writer.
            step: The step of the model.
            images: uint8 pixels of all test images.
            labels: Their classes.
            answers: The model's classes for them.
            classes: The names of the classes.
        """
        counts = np.zeros([len(classes), len(classes)], np.int64)
        np.add.at(counts, (labels, answers), 1)
        wrong = np.flatnonzero(np.asarray(labels) != np.asarray(answers))[:_MOST_IMAGES]
        with self._writing(name, step):
            summary.image("confusion", _matrix_image(counts)[None])
            summary.text("confusion table", _matrix_text(counts, classes))
            if len(wrong):
                captions = [f"{classes[labels[row]]} taken for {classes[answers[row]]}" for row in wrong]
                summary.image("wrong", images[wrong], max_outputs=len(wrong), description="; ".join(captions))

    def flush(self) -> None:
        """Write all values so far to the disk."""
        for writer in self._writers.values():
            writer.flush()

    def close(self) -> None:
        """Write all values to the disk, and close the files."""
        for writer in self._writers.values():
            writer.close()

    @contextlib.contextmanager
    def _writing(self, name: str, step: int) -> Iterator[None]:
        writer = self._writers[name]
        # The file is this process's own, also if the strategy has remote devices. All numbers are NumPy's,
        # because TensorFlow caches forever each Python number of which it makes a tensor.
        with tf.device("CPU:0"), writer.as_default(step=np.int64(step)):
            yield
        writer.flush()


def _matrix_image(counts: Any) -> Any:
    """Draw a matrix of counts, a row for each class: a larger share of its row makes a cell darker."""
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    # The square root makes the few wrong answers visible beside the many right ones.
    grey = (255 * (1 - np.sqrt(shares))).astype(np.uint8)
    cell = max(4, 320 // len(counts))
    lines = np.full((len(counts) * cell, len(counts) * cell), 200, np.uint8)
    image = np.kron(grey, np.ones((cell, cell), np.uint8))
    inside = np.arange(len(lines)) % cell > 0
    lines[np.ix_(inside, inside)] = image[np.ix_(inside, inside)]
    return lines[:, :, None]


def _matrix_text(counts: Any, classes: Sequence[str]) -> str:
    """Write a matrix of counts as a Markdown table."""
    rows = [["is \\ taken for", *classes], ["---"] * (len(classes) + 1)]
    rows += [[name, *map(str, row)] for name, row in zip(classes, counts, strict=True)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
