"""Note what the evaluator finds in the run's folder, where the chief reads it: results, and the best step.

An evaluator that may only read the folder, or has a copy of it from an object store, notes nothing.
"""

import contextlib
import logging
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from tfdist._utils.read_untrusted_files import read_json_file
from tfdist._utils.write_files import write_json
from tfdist.errors import StorageError
from tfdist.launcher.record_events import EventFile, record
from tfdist.launcher.run_events import FILE, AnyEvent, Evaluated, read_event, read_events, stamped
from tfdist.trainer.run_folder import RunFolder

_log = logging.getLogger("tfdist")


class _Best(msgspec.Struct):
    """The best of the checkpoints that an evaluator has evaluated."""

    step: int = 0
    accuracy: float = 0.0


def note_results(folder: RunFolder, step: int, results: Mapping[str, float]) -> None:
    """Add the results of a checkpoint, and write its step if it is the best so far."""
    with contextlib.suppress(OSError), contextlib.closing(EventFile(folder.evaluations_file)) as notes:
        notes.add(stamped(Evaluated(step=step, results=dict(results))))
    accuracy = results.get("accuracy", 0.0)
    if accuracy >= _read_best(folder.best_file).accuracy:
        try:
            write_json(folder.best_file, msgspec.to_builtins(_Best(step, accuracy)))
        except StorageError as error:
            _log.warning("step %d: the chief is not told that this is the best so far: %s", step, error)


class EvaluatorNotes:
    """The notes of the evaluator, as the chief reads them."""

    def __init__(self, folder: RunFolder) -> None:
        """Begin after the last evaluation among the events of the run."""
        self._folder = folder
        self._seen = max((event.step for event in _evaluations(folder.root / FILE)), default=-1)
        self._read = 0  # how many bytes of the notes: a long run has many, and asks at each checkpoint

    def best_step(self) -> int:
        """Return the step that is noted as the best; 0 if there is none."""
        return _read_best(self._folder.best_file).step

    def record_new(self) -> None:
        """Record the results that are new among the events of the run."""
        for event in self._new_notes():
            if isinstance(event, Evaluated) and event.step > self._seen:
                self._seen = event.step
                record(event)

    def _new_notes(self) -> list[AnyEvent | None]:
        """Return the events of the lines that were added since the last call and are whole."""
        try:
            with open(self._folder.evaluations_file, "rb") as file:
                if os.fstat(file.fileno()).st_size < self._read:  # another file
                    self._read = 0
                file.seek(self._read)
                lines, end, _ = file.read().rpartition(b"\n")
        except OSError:  # nothing has been written yet
            return []
        self._read += len(lines) + len(end)
        return [read_event(line) for line in lines.splitlines()]


def _evaluations(file: Path) -> list[Evaluated]:
    try:
        events = read_events(file)
    except OSError:  # nothing has been written yet
        return []
    return [event for event in events if isinstance(event, Evaluated)]


def _read_best(file: Path) -> _Best:
    try:
        return msgspec.convert(read_json_file(file), _Best)
    except (OSError, ValueError):  # it is missing, or damaged: then a new one is written
        return _Best()
