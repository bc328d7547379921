"""Keep what a training run needs to go on: variables by name, in TensorFlow's own file format.

    RUN/checkpoints/<step>/
        variables.index, variables.data-…    read by tf.train.load_checkpoint too
        about.json                           the step, facts of the run, and the SHA-256 of each file

A folder appears under its name when all of it is on the disk. One that has been damaged since is passed over.
The variables are saved as one process would have them, so that another strategy, or another number of tasks,
can go on with them.
"""

import contextlib
import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfdist.errors import ConfigError, StorageError, shown
from tfdist.files import fresh_folder, remove_folder, storage_errors, write_json

__all__ = ["Checkpoint", "check_variables", "find_newest", "list_steps", "open_checkpoint", "prune", "save"]

_FORMAT = 1
_VARIABLES = "variables"
_log = logging.getLogger("tfdist")


@dataclass(frozen=True)
class Checkpoint:
    """Describe a checkpoint whose files are whole.

    Attributes:
        folder: Where it is.
        step: How many steps had been done.
        facts: What the run noted besides: see `save`.
        variables: Name, shape and dtype of each variable, in order.
    """

    folder: Path
    step: int
    facts: dict[str, Any]
    variables: tuple[tuple[str, tuple[int, ...], str], ...]

    def read(self) -> list[Any]:
        """Read the values of all variables, in their order."""
        with _tensorflow_errors(self.folder):
            reader = tf.train.load_checkpoint(str(self.folder / _VARIABLES))
            return [reader.get_tensor(name) for name, _, _ in self.variables]


def save(folder: Path, step: int, values: Mapping[str, Any], facts: Mapping[str, Any]) -> Checkpoint:
    """Write a checkpoint, atomically.

    Args:
        folder: Where the checkpoints of a run are kept.
        step: How many steps have been done, which names it.
        values: The values of all variables by name.
        facts: What else is to be known when training goes on; plain values.
    """
    final = folder / str(step)
    tensors = [tf.convert_to_tensor(value) for value in values.values()]
    described = [
        (name, tuple(tensor.shape.as_list()), tensor.dtype.name)
        for name, tensor in zip(values, tensors, strict=True)
    ]
    with fresh_folder(final) as partial, _tensorflow_errors(final):
        with tf.device("CPU:0"):
            tf.raw_ops.SaveV2(
                prefix=str(partial / _VARIABLES),
                tensor_names=list(values),
                shape_and_slices=[""] * len(tensors),
                tensors=tensors,
            )
        sums = {file.name: _sha256(file) for file in sorted(partial.iterdir())}
        about = {"format": _FORMAT, "step": step, "facts": facts, "variables": described, "sha256": sums}
        write_json(partial / "about.json", about)
    return Checkpoint(final, step, dict(facts), tuple(described))


def find_newest(folder: Path) -> Checkpoint | None:
    """Give the newest checkpoint that is whole, if any, with a warning for each newer one that is not."""
    for step in reversed(list_steps(folder)):
        found = open_checkpoint(folder / str(step))
        if isinstance(found, Checkpoint):
            return found
        _log.warning("%s: %s; taking the one before", folder / str(step), found)
    return None


def list_steps(folder: Path) -> list[int]:
    """List the steps of the checkpoints in a folder, whole or not."""
    try:
        names = [each.name for each in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def open_checkpoint(folder: Path) -> Checkpoint | str:
    """Give a checkpoint, or say what is wrong with it."""
    try:
        about = json.loads((folder / "about.json").read_text("utf-8"))
        if about["format"] != _FORMAT:
            return f"is of format {shown(about['format'])}, which this tfdist does not read"
        for name, wanted in about["sha256"].items():
            if _sha256(folder / Path(name).name) != wanted:
                return f"{name} is damaged"
        variables = tuple((str(name), tuple(shape), str(dtype)) for name, shape, dtype in about["variables"])
        return Checkpoint(folder, int(about["step"]), dict(about["facts"]), variables)
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        return f"cannot be read ({type(error).__name__}: {error})"


def check_variables(checkpoint: Checkpoint, values: Mapping[str, Any]) -> None:
    """Refuse a checkpoint of another model, naming the first difference.

    Variables are compared in their order by shape and type: Keras numbers the names of layers anew in each
    process, by what was built before.
    """
    mine = [(name, tuple(value.shape), value.dtype.name) for name, value in values.items()]
    theirs: Sequence[Any] = checkpoint.variables
    for (name, shape, dtype), (their_name, their_shape, their_dtype) in zip(mine, theirs, strict=False):
        if (shape, dtype) != (their_shape, their_dtype):
            raise _differs(
                checkpoint, f"{their_name} {_size(their_shape, their_dtype)}", f"{name} {_size(shape, dtype)}"
            )
    if len(mine) != len(theirs):
        longer = max(mine, theirs, key=len)
        first = longer[min(len(mine), len(theirs))]
        extra = f"{len(longer)} variables, of which {first[0]} {_size(first[1], first[2])} is one more"
        both = (extra, f"{len(mine)}") if longer is theirs else (f"{len(theirs)}", extra)
        raise _differs(checkpoint, *both)


def prune(folder: Path, keep: int, also: Sequence[int] = ()) -> None:
    """Remove all but the newest so many checkpoints, and those of some steps."""
    for step in list_steps(folder)[:-keep]:
        if step not in also:
            with storage_errors(folder):
                remove_folder(folder / str(step))


def _differs(checkpoint: Checkpoint, theirs: str, mine: str) -> ConfigError:
    problem = f"is of another model: it has {theirs}, the config's model has {mine}"
    return ConfigError(str(checkpoint.folder), problem, remedy="Give another --run_dir, or the same model")


def _size(shape: Sequence[int], dtype: str) -> str:
    return f"{'x'.join(map(str, shape)) or 'scalar'} {dtype}"


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while block := opened.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


@contextlib.contextmanager
def _tensorflow_errors(folder: Path) -> Iterator[None]:
    """Report what TensorFlow's file operations fail with as what it is: a matter of the disk."""
    try:
        yield
    except tf.errors.OpError as error:
        reason = error.message.splitlines()[0]
        remedy = "Free some space, or name a folder that can be written to"
        raise StorageError(str(folder), f"cannot be written or read: {reason}", remedy=remedy) from error
