"""Record tasks from outside: TensorFlow's servers answer its profiler on the ports of the cluster.

Each server writes what it has recorded into a folder, on its own machine. So the folder must be one that all
tasks share, as the folder of a run on one machine is.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import tensorflow as tf

from tfdist._utils.redirected_output import redirected
from tfdist._utils.write_files import storage_errors
from tfdist.cluster.addresses_and_free_ports import split_address
from tfdist.errors import DataError, first_line
from tfdist.profiling.tensorflow_profiler import OPTIONS, Recorded, read_folder


def record_from_outside(addresses: Mapping[str, str], folder: Path, seconds: float) -> list[Recorded]:
    """Return what the tasks did within some seconds; a task may be missing.

    Args:
        addresses: The address of each task.
        folder: A folder in that of the run, which the tasks share.
        seconds: How long to record.

    Raises:
        DataError: No task has recorded anything.
        StorageError: The folder cannot be written.
    """
    with storage_errors(folder):
        folder.mkdir(exist_ok=True)
        parts = Path(tempfile.mkdtemp(prefix=".parts-", dir=folder)).absolute()
        _hand_to_owner(folder.parent, [folder, parts])
    try:
        _trace_all(list(addresses.values()), parts, seconds)
        found = read_folder(parts)
    finally:
        shutil.rmtree(parts, ignore_errors=True)
    return [
        Recorded(task, split_address(address)[0], 0, found[name])
        for task, address in addresses.items()
        if (name := address.replace(":", "_")) in found
    ]


def _hand_to_owner(run: Path, made: Sequence[Path]) -> None:
    """Hand what root has made over to the user who owns a run, whose tasks write there."""
    if os.geteuid() == 0:
        owner = run.stat()
        for path in made:
            os.chown(path, owner.st_uid, owner.st_gid)


def _trace_all(addresses: Sequence[str], folder: Path, seconds: float) -> None:
    """Record all tasks at once, each from a thread: TensorFlow 2.12 would record one after the other."""
    sys.stdout.flush()
    with (
        open(os.devnull, "wb") as nowhere,
        redirected(1, nowhere.fileno()),  # TensorFlow prints a line about each task
        ThreadPoolExecutor(len(addresses)) as pool,
    ):
        problems = list(pool.map(lambda address: _trace(address, folder, seconds), addresses))
    if problems and all(problems):
        remedy = "Record while the run trains, for longer, and not while another profiler runs"
        raise DataError("timeline", f"the tasks have recorded nothing: {problems[0]}", remedy=remedy)


def _trace(address: str, folder: Path, seconds: float) -> str:
    """Record one task; return why it has recorded nothing, or an empty string."""
    options = tf.profiler.experimental.ProfilerOptions(**OPTIONS)
    milliseconds = round(1000 * seconds)
    try:
        tf.profiler.experimental.client.trace(
            f"grpc://{address}", str(folder), milliseconds, num_tracing_attempts=1, options=options
        )
    except (tf.errors.OpError, RuntimeError) as error:  # by the version of TensorFlow
        return first_line(error)
    return ""
