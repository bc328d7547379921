"""Write what TensorBoard shows of a run: `tensorboard --logdir RUN`."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow import summary  # here: TensorFlow loads TensorBoard's part when it is first asked for

from tfdist.files import storage_errors

__all__ = ["Summaries"]

_MOST_PICTURES = 25


class Summaries:
    """Write curves and pictures into a run's folder; each writer's have a name of their own."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        self._writers = {name: summary.create_file_writer(str(folder / name)) for name in names}

    def add(self, name: str, step: int, values: Mapping[str, float]) -> None:
        """Add a point to each of some curves."""
        with self._writing(name, step):
            for each, value in values.items():
                summary.scalar(each, np.float32(value))

    def answers(
        self, name: str, step: int, images: Any, labels: Any, answers: Any, classes: Sequence[str]
    ) -> None:
        """Show how often each class was taken for each, and pictures that were taken for something else.

        Args:
            name: The writer.
            step: When.
            images: uint8 pixels of all test images.
            labels: What they are.
            answers: What the model took them for.
            classes: The classes' names.
        """
        counts = np.zeros([len(classes), len(classes)], np.int64)
        np.add.at(counts, (labels, answers), 1)
        wrong = np.flatnonzero(np.asarray(labels) != np.asarray(answers))[:_MOST_PICTURES]
        with self._writing(name, step):
            summary.image("confusion", _matrix_picture(counts)[None])
            summary.text("confusion table", _matrix_text(counts, classes))
            if len(wrong):
                told = [f"{classes[labels[row]]} taken for {classes[answers[row]]}" for row in wrong]
                summary.image("wrong", images[wrong], max_outputs=len(wrong), description="; ".join(told))

    def flush(self) -> None:
        """Have on the disk what there is so far."""
        for writer in self._writers.values():
            writer.flush()

    def close(self) -> None:
        """Have everything on the disk."""
        for writer in self._writers.values():
            writer.close()

    @contextlib.contextmanager
    def _writing(self, name: str, step: int) -> Iterator[None]:
        writer = self._writers[name]
        # Under a strategy of remote devices, the file is still this process's own. All numbers are NumPy's:
        # TensorFlow keeps each of Python's that it makes a tensor of for ever, in a cache.
        with tf.device("CPU:0"), writer.as_default(step=np.int64(step)):
            yield
        writer.flush()


def _matrix_picture(counts: Any) -> Any:
    """Draw a matrix of counts: a row a class, darker where more of it went there."""
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    # The square root shows the few that went astray beside the many that did not.
    grey = (255 * (1 - np.sqrt(shares))).astype(np.uint8)
    cell = max(4, 320 // len(counts))
    lines = np.full((len(counts) * cell, len(counts) * cell), 200, np.uint8)
    picture = np.kron(grey, np.ones((cell, cell), np.uint8))
    inside = np.arange(len(lines)) % cell > 0
    lines[np.ix_(inside, inside)] = picture[np.ix_(inside, inside)]
    return lines[:, :, None]


def _matrix_text(counts: Any, classes: Sequence[str]) -> str:
    """Write a matrix of counts as a Markdown table."""
    rows = [["is \\ taken for", *classes], ["---"] * (len(classes) + 1)]
    rows += [[name, *map(str, row)] for name, row in zip(classes, counts, strict=True)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
