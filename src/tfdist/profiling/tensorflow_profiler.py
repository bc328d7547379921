"""Record this process with TensorFlow's profiler, and put what it recorded into bytes for another task."""

import json
import platform
import time
import zlib
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf

from tfdist._utils.write_files import temporary_folder
from tfdist.errors import ConfigError, DataError

_BOOT = Path("/proc/sys/kernel/random/boot_id")  # the same in all containers of a machine, as its clock is
# Operations and named spans. The tracer of Python calls would slow every one of them down.
OPTIONS = {"host_tracer_level": 2, "python_tracer_level": 0, "device_tracer_level": 1}


class Recorded(NamedTuple):
    """What the profiler has recorded of one task.

    Attributes:
        task: The name of the task.
        machine: The machine, whose processes have one clock.
        began: When the recording began, in nanoseconds since 1970 by that clock; 0 if unknown. TensorFlow
            records it too, but not in its older versions.
        planes: The recording, as the profiler writes it.
    """

    task: str
    machine: str
    began: int
    planes: bytes


class Recorder:
    """The recording of this process, from `begin` to `end`."""

    def __init__(self, task: str) -> None:
        self._task = task
        self._folder: ExitStack | None = None  # which removes it
        self._path = ""
        self._began = 0

    def begin(self) -> None:
        """Start the profiler; forget a recording of a chief that has not ended it.

        Raises:
            ConfigError: Another profiler runs already in this process.
            StorageError: No folder for temporary files can be written to.
        """
        if self._folder is not None:
            self.end()
        folder = ExitStack()
        self._path = folder.enter_context(temporary_folder("tfdist-profile-"))
        options = tf.profiler.experimental.ProfilerOptions(**OPTIONS)
        self._began = time.time_ns()
        try:
            tf.profiler.experimental.start(self._path, options)
        except tf.errors.AlreadyExistsError:
            folder.close()
            remedy = "Leave the other one out, such as profile_batch of Keras's TensorBoard callback"
            raise ConfigError("profile", "a profiler runs already in this process", remedy=remedy) from None
        self._folder = folder

    def end(self) -> Recorded:
        """Stop the profiler, and return what it has recorded; nothing if it did not run."""
        if self._folder is None:
            return Recorded(self._task, _machine(), 0, b"")
        with self._folder:
            self._folder = None
            tf.profiler.experimental.stop()
            planes = b"".join(read_folder(Path(self._path)).values())
            return Recorded(self._task, _machine(), self._began, planes)


def read_folder(folder: Path) -> dict[str, bytes]:
    """Return what the profiler has written below a folder, by the name that stands before `.xplane.pb`."""
    paths = sorted(folder.rglob("*.xplane.pb"))
    return {path.name.removesuffix(".xplane.pb"): path.read_bytes() for path in paths}


def pack(recorded: Recorded) -> bytes:
    """Return a recording as bytes for another task."""
    head = json.dumps([recorded.task, recorded.machine, recorded.began]).encode()
    return zlib.compress(head + b"\n" + recorded.planes)


def unpack(data: bytes) -> Recorded:
    """Return the recording of bytes that `pack` has made."""
    try:
        head, _, planes = zlib.decompress(data).partition(b"\n")
        task, machine, began = json.loads(head)
    except (zlib.error, ValueError) as error:
        problem = f"a task sent something else ({error})"
        raise DataError("profile", problem, remedy="Run the same version of tfdist on all hosts") from None
    return Recorded(task, machine, began, planes)


def _machine() -> str:
    return _BOOT.read_text("utf-8").strip() if _BOOT.exists() else platform.node()
