"""What faults do to a training: signals, damaged files, a full disk, too little memory, a clock that is set."""

import contextlib
import functools
import mmap
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from training import TORN, Training

__all__ = [
    "DAMAGES",
    "Clock",
    "ClockSet",
    "Damage",
    "DiskFull",
    "Harm",
    "OutOfMemory",
    "Signal",
    "fill",
    "small_disk",
]

_SECONDS = 100


class Harm:
    """What a fault does.

    Attributes:
        name: For tables.
        status: That of a command that is hit.
        loses: Whether the victim ends, and the run begins again unless others can do without the victim.
        saves: Whether all steps are saved before.
        tears: Whether the newest checkpoint is of no use afterwards.
        forgets: Whether the run's history begins again.
        loses_count: Whether the run cannot know how many steps it has lost.
        needs_steps: Whether the victim takes further steps before it ends.
    """

    name: str
    status: int = -signal.SIGKILL
    loses = True
    saves = tears = forgets = loses_count = needs_steps = False

    @classmethod
    def why_not(cls) -> str:
        """Return why this cannot be done here, or nothing."""
        return ""

    @contextlib.contextmanager
    def prepared(self, training: Training) -> Iterator[None]:
        """Make what is needed for it before a training starts, and remove that after its end."""
        yield

    def inflict(self, training: Training, pid: int) -> None:
        """Do it to a process of a training."""
        raise NotImplementedError

    def settle(self, training: Training) -> None:
        """Do what comes when all have ended that had to, and before the command is typed again."""


@dataclass(frozen=True)
class Signal(Harm):
    """A signal."""

    number: signal.Signals = signal.SIGKILL

    @property
    def name(self) -> str:
        return self.number.name

    @property
    def status(self) -> int:
        return -self.number if self.number == signal.SIGKILL else 138

    @property
    def saves(self) -> bool:
        return self.number == signal.SIGTERM

    @property
    def needs_steps(self) -> bool:
        return self.saves  # it ends between two calls

    def inflict(self, training: Training, pid: int) -> None:
        os.kill(pid, self.number)


def _fill_with_zeros(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.write(bytes(file.stat().st_size))


_WAYS: dict[str, Callable[[Path], None]] = {
    "cut in half": lambda file: os.truncate(file, file.stat().st_size // 2),
    "emptied": lambda file: os.truncate(file, 0),
    "all zeros": _fill_with_zeros,
}


@dataclass(frozen=True)
class Damage(Harm):
    """SIGKILL, and files of the run damaged besides, as by a disk that loses power.

    Attributes:
        files: Which, as patterns within the run, where NEWEST stands for the step of the newest checkpoint.
        way: Which of several.
    """

    files: tuple[str, ...]
    way: str

    @property
    def name(self) -> str:
        return f"SIGKILL, {' and '.join(self.files).replace('checkpoints/', '')} {self.way}"

    @property
    def tears(self) -> bool:
        return any("NEWEST" in file for file in self.files)

    @property
    def forgets(self) -> bool:
        return "checkpoints/history.json" in self.files

    @property
    def loses_count(self) -> bool:
        return "checkpoints/reached" in self.files

    def inflict(self, training: Training, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)

    def settle(self, training: Training) -> None:
        newest = str(training.newest())
        if self.forgets:
            training.past.append(training.history())
        for pattern in self.files:
            found = list(training.run.glob(pattern.replace("NEWEST", newest)))
            assert found or pattern.startswith("logs/"), f"no {pattern}"  # one process alone has no logs
            for file in found:
                _WAYS[self.way](file)
        if self.tears:
            (training.run / "checkpoints" / newest / TORN).touch()


TORN_DATA = Damage(("checkpoints/NEWEST/variables.data-*",), "cut in half")
_FILES = (
    ("checkpoints/NEWEST/variables.data-*",),
    ("checkpoints/NEWEST/variables.index",),
    ("checkpoints/NEWEST/about.json",),
    ("checkpoints/history.json",),
    ("checkpoints/reached",),
    ("logs/*.log", "events.jsonl"),
)
DAMAGES = tuple(Damage(files, way) for files in _FILES for way in _WAYS)


class DiskFull(Harm):
    """A disk that is full, until the command has ended for it."""

    name = "full disk"
    status = 2
    needs_steps = True

    @classmethod
    @functools.cache
    def why_not(cls) -> str:
        try:
            with tempfile.TemporaryDirectory() as folder, small_disk(Path(folder)):
                return ""
        except OSError as error:
            return str(error)

    @contextlib.contextmanager
    def prepared(self, training: Training) -> Iterator[None]:
        training.run.mkdir(parents=True)
        with small_disk(training.run):
            yield

    def inflict(self, training: Training, pid: int) -> None:
        fill(training.run)

    def settle(self, training: Training) -> None:
        (training.run / "ballast").unlink()


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """Mount a small disk as a folder.

    Raises:
        OSError: That cannot be done here.
    """
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if done.returncode:
        raise OSError(f"no small disk can be mounted: {done.stderr.strip()}")
    try:
        yield
    finally:
        _soon(lambda: subprocess.run(["umount", str(folder)], check=True, timeout=_SECONDS))


def fill(disk: Path) -> Path:
    """Fill a disk up to its last byte, with a file that is returned."""
    with open(disk / "ballast", "wb", 0) as ballast:
        for size in (1 << 20, 1 << 10, 1):
            try:
                while ballast.write(b"\0" * size):
                    pass
            except OSError:
                continue
    return disk / "ballast"


_LIMIT = 1 << 20
# A process that is idle takes no memory from its new group, so a small one beside it does.
_NEIGHBOUR = """
import pathlib, sys
pathlib.Path(sys.argv[1], "cgroup.procs").write_text("0")
bytearray(1 << 26)
"""


class OutOfMemory(Harm):
    """A memory cgroup whose limit is far below what a task uses, so that the kernel ends it."""

    name = "out of memory"

    @classmethod
    @functools.cache
    def why_not(cls) -> str:
        try:
            with _memory_group():
                return ""
        except OSError as error:
            return f"no memory cgroup can be made: {error}"

    @contextlib.contextmanager
    def prepared(self, training: Training) -> Iterator[None]:
        with _memory_group() as self._group:
            yield

    def inflict(self, training: Training, pid: int) -> None:
        before = self._killed()
        (self._group / "cgroup.procs").write_text(str(pid))
        command = [sys.executable, "-c", _NEIGHBOUR, str(self._group)]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as neighbour:
            try:
                killed = f"the kernel ends {pid} for its memory"
                training.until(lambda: self._killed() > before, killed, _SECONDS)
                training.until(lambda: pid not in training.alive(), killed, _SECONDS)
            finally:
                neighbour.kill()

    def _killed(self) -> int:
        """Return how many processes of the group the kernel has ended."""
        for name in ("memory.oom_control", "memory.events"):
            if (self._group / name).exists():
                counts = dict(line.split() for line in (self._group / name).read_text().splitlines())
        return int(counts["oom_kill"])


@contextlib.contextmanager
def _memory_group() -> Iterator[Path]:
    """Make a memory cgroup with a low limit, of either version, and remove it.

    Raises:
        OSError: That cannot be done here.
    """
    one = Path("/sys/fs/cgroup/memory")
    root, limit = (one, "memory.limit_in_bytes") if one.exists() else (one.parent, "memory.max")
    group = Path(tempfile.mkdtemp(prefix="faults-", dir=root))
    try:
        (group / limit).write_text(str(_LIMIT))
        yield group
    finally:
        _soon(group.rmdir)


class Clock:
    """The clock on the wall as processes read it that were started with `environ`; no other process does.

    Attributes:
        environ: The variables to start them with.
    """

    def __init__(self, folder: Path) -> None:
        """Build in a folder what changes the clock.

        Raises:
            OSError: There is no compiler.
        """
        library, self._ahead = folder / "clock.so", folder / "ahead"
        self._ahead.write_bytes(struct.pack("d", 0.0))
        source = Path(__file__).with_name("clock.c")
        command = ["cc", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", library, source, "-ldl"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
        if done.returncode:
            raise OSError(f"the clock cannot be built: {done.stderr}")
        self.environ = {"LD_PRELOAD": str(library), "CLOCK_AHEAD": str(self._ahead)}

    def set(self, seconds: float) -> None:
        """Set the clock ahead, or back."""
        with self._ahead.open("r+b") as file, mmap.mmap(file.fileno(), 8) as ahead:
            ahead[:] = struct.pack("d", struct.unpack("d", ahead)[0] + seconds)


@dataclass(frozen=True)
class ClockSet(Harm):
    """The clock on the wall of all tasks is set while they run.

    Attributes:
        seconds: By how much.
    """

    seconds: float
    name = "wall clock set"
    loses = False

    @classmethod
    @functools.cache
    def why_not(cls) -> str:
        try:
            with tempfile.TemporaryDirectory() as folder:
                Clock(Path(folder))
        except OSError as error:
            return str(error)
        return ""

    @contextlib.contextmanager
    def prepared(self, training: Training) -> Iterator[None]:
        folder = training.folder / "clock"
        folder.mkdir()
        training.clock = Clock(folder)
        training.environ.update(training.clock.environ)
        yield

    def inflict(self, training: Training, pid: int) -> None:
        training.clock.set(self.seconds)


def _soon(act: Callable[[], object]) -> None:
    """Do what fails as long as processes that were ended are still there."""
    give_up = time.monotonic() + _SECONDS
    while True:
        try:
            act()
            return
        except (OSError, subprocess.CalledProcessError) as error:
            assert time.monotonic() < give_up, f"left behind: {error}"
            time.sleep(0.1)
