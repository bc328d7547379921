"""Save and load what a run needs to resume: variables by name, in TensorFlow's own file format.

    RUN/checkpoints/<step>/
        variables.index, variables.data-…    read by tf.train.load_checkpoint too
        rounding_errors.npz                  with int8 gradients: see rounding_errors.py
        about.json                           the step, facts of the run, and the SHA-256 of each file

A folder gets its name when all of its files are on the disk. A checkpoint that is damaged later is skipped.
The variables are those that one process would have, so a run can resume with another strategy or another
number of tasks.
"""

import contextlib
import hashlib
import logging
import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist._utils.read_untrusted_files import glob_free_path, opened_regular, read_json_file
from tfdist._utils.write_files import fresh_folder, remove_folder, storage_errors, write_json, write_whole
from tfdist.coordination.stall_limit import Activity
from tfdist.coordination.stall_watch import doing
from tfdist.errors import ConfigError, StorageError, first_line, shown
from tfdist.training.keras.callback_states import OF_CALLBACK

_FORMAT = 1
_VARIABLES = "variables"
ABOUT = "about.json"  # written last: the mark of a complete checkpoint
ROUNDING_ERRORS = "rounding_errors.npz"
OF_EPOCH = "epoch/"  # the prefix of the totals of the epoch so far
# The errors of TensorFlow's reader for damaged files: IndexError, say, if one is too short.
_DAMAGED = (tf.errors.OpError, IndexError, MemoryError, ValueError)
Entry = tuple[str, tuple[int, ...], str]
_log = logging.getLogger("tfdist")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files are complete.

    Attributes:
        folder: The folder of this checkpoint.
        step: How many steps were done.
        facts: Further facts of the run: see `save`.
        variables: Name, shape and dtype of all values, in order.
    """

    folder: Path
    step: int
    facts: dict[str, Any]
    variables: tuple[Entry, ...]

    @property
    def state(self) -> tuple[Entry, ...]:
        """Return the entries of the variables of the model, its optimizer and its random generators."""
        return tuple(entry for entry in self.variables if is_state(entry[0]))

    @doing(Activity("reading a checkpoint"))
    def read(self, entries: Sequence[Entry]) -> list[Any]:
        """Return the values of these entries, in their order.

        Raises:
            StorageError: A file has vanished, or its values are damaged.
        """
        try:
            with _reader(self.folder) as reader:
                return [reader.get_tensor(name) for name, _, _ in entries]
        except _DAMAGED as error:
            remedy = "Remove this checkpoint, to resume from the one before it"
            problem = f"cannot be read: {first_line(error)}"
            raise StorageError(str(self.folder), problem, remedy=remedy) from error


def is_state(name: str) -> bool:
    """Return whether a value of this name is one of the model, its optimizer or its random generators."""
    return not name.startswith((OF_EPOCH, OF_CALLBACK))


def snapshot(values: Mapping[str, Any]) -> dict[str, tf.Tensor]:
    """Return values in the memory of this process, which training does not change any more."""
    with tf.device("CPU:0"):
        # TensorFlow may share the memory of an array, and copies a variable's when it next changes.
        return {
            name: tf.identity(value.copy() if isinstance(value, np.ndarray) else value)
            for name, value in values.items()
        }


@doing(Activity("saving a checkpoint"))
def save(
    folder: Path,
    step: int,
    values: Mapping[str, Any],
    facts: Mapping[str, Any],
    files: Mapping[str, bytes] | None = None,
) -> Checkpoint:
    """Write a checkpoint atomically.

    Args:
        folder: The folder of all checkpoints of a run.
        step: How many steps are done; the name of the checkpoint.
        values: The values of all variables by name.
        facts: Further facts that a resumed run needs; plain values.
        files: Further files, by name.

    Raises:
        StorageError: The disk is full or refuses, or what has the name of the checkpoint is not one.
    """
    final = folder / str(step)
    tensors = [tf.convert_to_tensor(value) for value in values.values()]
    described = [
        (name, tuple(tensor.shape.as_list()), tensor.dtype.name)
        for name, tensor in zip(values, tensors, strict=True)
    ]
    if final.exists() and not final.is_symlink() and not _is_own(final):
        remedy = "Move it away, or name another folder"
        raise StorageError(str(final), "is in the way, and is not a checkpoint of tfdist", remedy=remedy)
    with fresh_folder(final) as partial:
        try:
            with tf.device("CPU:0"):
                tf.raw_ops.SaveV2(
                    prefix=str(partial / _VARIABLES),
                    tensor_names=list(values),
                    shape_and_slices=[""] * len(tensors),
                    tensors=tensors,
                )
        except tf.errors.OpError as error:
            remedy = "Free some space, or name a folder that can be written to"
            problem = f"cannot be written: {first_line(error)}"
            raise StorageError(str(final), problem, remedy=remedy) from error
        for name, data in (files or {}).items():
            write_whole(partial / name, data)
        sums = {file.name: _sha256(file) for file in sorted(partial.iterdir())}
        about = {"format": _FORMAT, "step": step, "facts": facts, "variables": described, "sha256": sums}
        write_json(partial / ABOUT, about)
    return Checkpoint(final, step, dict(facts), tuple(described))


def find_newest(folder: Path) -> Checkpoint | None:
    """Return the newest complete checkpoint, if any; warn of each newer one that is damaged."""
    for step in reversed(list_steps(folder)):
        opened = open_checkpoint(folder / str(step))
        if isinstance(opened, Checkpoint):
            return opened
        _log.warning("%s: %s; using the checkpoint before it", folder / str(step), opened)
    return None


def list_steps(folder: Path) -> list[int]:
    """Return the steps of all checkpoints in a folder, complete or not."""
    try:
        names = [path.name for path in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return steps_in(names)


def steps_in(names: Iterable[str]) -> list[int]:
    """Return the steps of the checkpoints among the names in a folder."""
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def open_checkpoint(folder: Path) -> Checkpoint | str:
    """Return a checkpoint, or a text that says what is wrong with it."""
    try:
        about = read_json_file(folder / ABOUT)
        if about["format"] != _FORMAT:
            return f"is of format {shown(about['format'])}, which this tfdist does not read"
        for name, wanted in about["sha256"].items():
            if _sha256(folder / Path(name).name) != wanted:
                return f"{name} is damaged"
        variables = tuple((str(name), tuple(shape), str(dtype)) for name, shape, dtype in about["variables"])
        if (damage := _damage(folder, about["sha256"], variables)) is not None:
            return damage
        return Checkpoint(folder, int(about["step"]), dict(about["facts"]), variables)
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (*_DAMAGED, OSError, TypeError, KeyError, AttributeError, OverflowError) as error:
        return f"cannot be read ({type(error).__name__}: {first_line(error)})"


def _damage(folder: Path, sums: Container[str], variables: Iterable[tuple[str, Any, str]]) -> str | None:
    """Return what is wrong with the files of a checkpoint beyond their sums, which may be missing or forged.

    The values themselves are not read.
    """
    data = sorted(folder.glob(f"{_VARIABLES}.data-*"))
    for name in (f"{_VARIABLES}.index", *(file.name for file in data)):
        if name not in sums:
            return f"{ABOUT} has no SHA-256 of {name}"
    with _reader(folder) as reader:
        shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    size = 0
    for name, shape, dtype in variables:
        if name not in shapes or (tuple(shapes[name]), dtypes[name].name) != (shape, dtype):
            return f"{_VARIABLES}.index does not have {shown(name)} as {ABOUT} says"
        size += 0 if dtypes[name] == tf.string else math.prod(shape) * dtypes[name].size
    if sum(file.stat().st_size for file in data) < size:
        return f"{_VARIABLES}.data-… is shorter than its {size} bytes"
    return None


def check_variables(
    checkpoint: Checkpoint,
    values: Mapping[str, Any],
    *,
    whose: str = "the config's model",
    remedy: str = "Set another --run_dir, or use the same model",
) -> None:
    """Raise ConfigError for a checkpoint of another model, with the first difference.

    This compares the shapes and types of the variables in order, but not their names: Keras numbers layers by
    what the process has built before.
    """
    mine = [(name, tuple(value.shape), value.dtype.name) for name, value in values.items()]
    theirs: Sequence[Any] = checkpoint.state

    def differs(theirs: str, mine: str) -> ConfigError:
        problem = f"is of another model: it has {theirs}, {whose} has {mine}"
        return ConfigError(str(checkpoint.folder), problem, remedy=remedy)

    for (name, shape, dtype), (their_name, their_shape, their_dtype) in zip(mine, theirs, strict=False):
        if (shape, dtype) != (their_shape, their_dtype):
            raise differs(f"{their_name} {_size(their_shape, their_dtype)}", f"{name} {_size(shape, dtype)}")
    if len(mine) != len(theirs):
        longer = max(mine, theirs, key=len)
        first = longer[min(len(mine), len(theirs))]
        extra = f"{len(longer)} variables, the first extra one {first[0]} {_size(first[1], first[2])}"
        both = (extra, f"{len(mine)}") if longer is theirs else (f"{len(theirs)}", extra)
        raise differs(*both)


@doing(Activity("removing old checkpoints"))
def prune(folder: Path, keep: int, also: Sequence[int] = ()) -> None:
    """Remove all checkpoints but the newest `keep`, and those of the steps in `also`.

    Links, and folders that hold something else, are not removed and do not count.
    """
    with storage_errors(folder):
        own = [step for step in list_steps(folder) if _is_own(folder / str(step))]
        for step in obsolete(own, keep, also):
            remove_folder(folder / str(step))


def obsolete(steps: Sequence[int], keep: int, also: Sequence[int]) -> list[int]:
    """Return all steps but the newest `keep`, and those in `also`."""
    return [step for step in steps[:-keep] if step not in also]


def is_checkpoint(names: Iterable[str]) -> bool:
    """Return whether a folder with these files is a checkpoint, of which some may be missing."""
    rest = set(names) - {ABOUT, ROUNDING_ERRORS}
    return not rest or any(name.startswith((f"{_VARIABLES}.index", f"{_VARIABLES}.data-")) for name in rest)


def _is_own(folder: Path) -> bool:
    if folder.is_symlink() or not folder.is_dir():
        return False
    try:
        names = [file.name for file in folder.iterdir()]
    except FileNotFoundError:  # somebody has just removed it
        return False
    return is_checkpoint(names)


def _size(shape: Sequence[int], dtype: str) -> str:
    return f"{'x'.join(map(str, shape)) or 'scalar'} {dtype}"


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with opened_regular(file) as opened:
        while block := opened.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


@contextlib.contextmanager
def _reader(folder: Path) -> Iterator[Any]:
    with glob_free_path(folder) as path:
        yield tf.train.load_checkpoint(str(path / _VARIABLES))
