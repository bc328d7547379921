"""Write a model's answers as JSON lines or CSV, one image a line, and count the correct ones."""

import csv
import io
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TextIO

import numpy as np

from tfdist._utils.write_files import opened_stream, partial_file, storage_errors, write_output
from tfdist.export.export_folder import Exported
from tfdist.export.image_grid import Caption, draw_grid
from tfdist.export.load_export import load
from tfdist.export.prediction_inputs import ImageBatch, read_images

_MOST_DRAWN = 64
_DIGITS = 6
_COLUMNS = ("key", "file", "label", "class", "score", "truth")


@dataclass
class Summary:
    """The numbers of images, of those with a known label, and of correct answers for these."""

    images: int = 0
    known: int = 0
    right: int = 0

    @property
    def accuracy(self) -> float | None:
        """Return the part of correct answers among images with a known label."""
        return self.right / self.known if self.known else None


def answer(
    exported: Exported,
    source: str,
    *,
    batch_size: int,
    output: Path | None,
    form: Literal["jsonl", "csv"],
    grid: Path | None = None,
) -> Summary:
    """Predict images, and write the model's answers.

    Args:
        exported: The model.
        source: A path or a data set's name, as for `read_images`.
        batch_size: The number of images in a batch.
        output: The file to write atomically, or a device, a FIFO or a stream; None means standard output.
        form: JSON lines, or CSV.
        grid: The PNG file to draw the first images and their answers in, wrong answers first.
    """
    batches = read_images(source, exported, batch_size)
    scores = load(exported)
    summary = Summary()
    drawn = _Drawn()
    with _opened(output) as stream:
        write = _writer(stream, form)
        for batch in batches:
            for index, row in enumerate(_answers(batch, scores(batch.images), exported.classes)):
                truth = row.get("truth")
                summary.images += 1
                summary.known += truth is not None
                summary.right += truth == row["label"]
                write(row)
                if grid is not None:
                    drawn.add(batch.images[index], row, exported.classes)
    if grid is not None:
        write_output(grid, draw_grid(*drawn.chosen()))
    return summary


def _answers(batch: ImageBatch, scores: Any, classes: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    for index, label in enumerate(np.argmax(scores, axis=-1).tolist()):
        row: dict[str, Any] = {"key": batch.keys[index]}
        if batch.files is not None:
            row["file"] = batch.files[index]
        row |= {"label": label, "class": classes[label], "score": round(float(scores[index, label]), _DIGITS)}
        if batch.labels[index] is not None:
            row["truth"] = batch.labels[index]
        yield row


class _Drawn:
    """The images of the grid; stores no more than the grid shows."""

    def __init__(self) -> None:
        self._wrong: list[tuple[Any, Caption]] = []
        self._others: list[tuple[Any, Caption]] = []

    def add(self, image: Any, row: dict[str, Any], classes: tuple[str, ...]) -> None:
        truth = row.get("truth")
        is_wrong = truth not in (None, row["label"])
        text = f"{row['class']} {row['score']:.0%}"
        caption = Caption(text, f"not {classes[truth]}" if is_wrong and truth is not None else "")
        kept = self._wrong if is_wrong else self._others
        if len(kept) < _MOST_DRAWN:
            kept.append((image, caption))

    def chosen(self) -> tuple[list[Any], list[Caption]]:
        chosen = [*self._wrong, *self._others][:_MOST_DRAWN]
        return [image for image, _ in chosen], [caption for _, caption in chosen]


def _writer(stream: TextIO, form: str) -> Callable[[dict[str, Any]], object]:
    if form == "csv":
        rows = csv.DictWriter(stream, _COLUMNS, lineterminator="\n")
        rows.writeheader()
        return rows.writerow
    return lambda row: stream.write(json.dumps(row, ensure_ascii=False) + "\n")


@contextmanager
def _opened(output: Path | None) -> Iterator[TextIO]:
    """Yield standard output, or a file that gets its name only when it is complete."""
    if output is None:
        yield sys.stdout
        return
    with storage_errors(output):
        if opened := opened_stream(output):
            with io.TextIOWrapper(opened, encoding="utf-8", newline="") as stream:
                yield stream
            return
        with partial_file(output) as partial:
            with partial.open("w", encoding="utf-8", newline="") as stream:
                yield stream
            partial.replace(output)
