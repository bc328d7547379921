"""Write a model's answers as JSON lines or CSV, one picture a line, and count those that are right."""

import csv
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TextIO

import numpy as np

from tfdist.exports import Exported
from tfdist.files import storage_errors, write_whole
from tfdist.inference.grid import Caption, draw_grid
from tfdist.inference.models import load
from tfdist.inference.pictures import Pictures, read_pictures

__all__ = ["Summary", "answer"]

_MOST_DRAWN = 64
_DIGITS = 6
_COLUMNS = ("key", "file", "label", "class", "score", "truth")


@dataclass
class Summary:
    """Count the pictures, those whose label was known, and those among them that the model got right."""

    pictures: int = 0
    known: int = 0
    right: int = 0

    @property
    def accuracy(self) -> float | None:
        """Give the part of the known ones that is right."""
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
    """Ask a model about pictures, and write what it says.

    Args:
        exported: The model.
        source: What `read_pictures` takes.
        batch_size: How many pictures are asked about at once.
        output: The file to write, in one step; standard output where there is none.
        form: JSON lines, or CSV.
        grid: Where to draw the first pictures with their answers, the wrong ones before the others.
    """
    pictures = read_pictures(source, exported, batch_size)
    scores = load(exported)
    summary = Summary()
    drawn = _Drawn()
    with _opened(output) as stream:
        write = _writer(stream, form)
        for batch in pictures:
            for index, row in enumerate(_answers(batch, scores(batch.images), exported.classes)):
                truth = row.get("truth")
                summary.pictures += 1
                summary.known += truth is not None
                summary.right += truth == row["label"]
                write(row)
                if grid is not None:
                    drawn.add(batch.images[index], row, exported.classes)
    if grid is not None:
        write_whole(grid, draw_grid(*drawn.chosen()))
    return summary


def _answers(batch: Pictures, scores: Any, classes: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    for index, label in enumerate(np.argmax(scores, axis=-1).tolist()):
        row: dict[str, Any] = {"key": batch.keys[index]}
        if batch.files is not None:
            row["file"] = batch.files[index]
        row |= {"label": label, "class": classes[label], "score": round(float(scores[index, label]), _DIGITS)}
        if batch.labels[index] is not None:
            row["truth"] = batch.labels[index]
        yield row


class _Drawn:
    """Keep the pictures that go into the grid, and no more of them than that."""

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
    """Open standard output, or a file that has its name only when all of it has been written."""
    if output is None:
        yield sys.stdout
        return
    partial = output.with_name(f".{output.name}.partial")
    with storage_errors(output):
        try:
            with partial.open("w", encoding="utf-8", newline="") as stream:
                yield stream
            partial.replace(output)
        finally:
            partial.unlink(missing_ok=True)
