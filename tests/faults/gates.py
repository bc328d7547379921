"""Stop a run at a place until a test has seen it there, however long the test takes.

A gate is a file in a folder that tasks know by the variable GATES: they wait at its place while it is there.
"""

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

__all__ = [
    "BUILD",
    "END",
    "EXPORT_BEGINS",
    "GATES",
    "IN_CHECKPOINT",
    "IN_EXPORT",
    "Gates",
    "add_gates",
    "wait_at",
    "wait_for_step",
]

GATES = "FAULTS_GATES"
BUILD = "build"  # of a model, with which each start of a run begins
EXPORT_BEGINS, IN_EXPORT = "before export", "in export"  # IN: while there is a folder that is not complete
IN_CHECKPOINT = "in checkpoints"
END = "end"  # of the chief, when all is written, and of the evaluator
_STEPS = "steps"  # holds a number: how many the run may take
_ALL = 10**9
_BETWEEN_LOOKS = 0.01


class Gates:
    """Close and open the gates of a run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.allow()

    def close(self, *names: str) -> None:
        for name in names:
            (self.folder / name).touch()

    def open(self, *names: str) -> None:
        for name in names:
            (self.folder / name).unlink(missing_ok=True)

    def allow(self, steps: int = _ALL) -> None:
        """Allow the run so many steps, or all."""
        partial = self.folder / f".{_STEPS}"
        partial.write_text(str(steps))
        partial.replace(self.folder / _STEPS)


def wait_at(name: str) -> None:
    """Wait, in a task, while a gate is closed."""
    folder = os.environ.get(GATES)
    while folder and Path(folder, name).exists():
        time.sleep(_BETWEEN_LOOKS)


def wait_for_step(step: Any) -> Any:
    """Return the operations that wait until the run may take more than `step` steps."""
    import tensorflow as tf

    folder = os.environ.get(GATES)
    if not folder:
        return []

    def is_held(count: Any) -> Any:
        # The name depends on the count, or TensorFlow would read once, when it optimizes the graph.
        nothing = tf.strings.substr(tf.strings.as_string(count), 0, 0)
        allowed = tf.io.read_file(tf.strings.join([f"{folder}/{_STEPS}", nothing]))
        return step >= tf.strings.to_number(allowed)

    # In the graph, for a worker beside ps tasks runs no Python.
    return tf.while_loop(is_held, lambda count: (count + 1,), (tf.constant(0),))


@functools.cache
def add_gates() -> None:
    """Add gates to what writes checkpoints and exports in this process, and to the end of a run's curves."""
    from tfdist._utils import write_files
    from tfdist.trainer.summaries import Summaries

    write_files.fresh_path = _with_gates(write_files.fresh_path)
    close = Summaries.close

    def close_later(summaries: Summaries) -> None:
        wait_at(END)
        close(summaries)

    Summaries.close = close_later


def _with_gates(fresh_path: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """Return the function that makes the partial folder of a checkpoint or export, with gates around that."""

    @contextlib.contextmanager
    def fresh_path_with_gates(final: Path) -> Iterator[Path]:
        wait_at(f"before {final.parent.name}")
        with fresh_path(final) as written:
            wait_at(f"in {final.parent.name}")
            yield written

    return fresh_path_with_gates
