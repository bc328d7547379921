"""Run one task of a cluster on the node of Ray where this actor is."""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import ray

from tfdist.cluster.addresses_and_free_ports import LocalPorts, is_free
from tfdist.engines.job_description import PYTHON
from tfdist.engines.ray import task_process
from tfdist.engines.ray.launch_plan import FILES
from tfdist.launcher.environment import default_variables, inherited_variables
from tfdist.launcher.progress_for_engines import LOG_PROGRESS, PROGRESS_FILE, SAVED_STEP
from tfdist.launcher.share_cores_and_gpus import SHARES_GPU, Cores

_SECONDS_BETWEEN_READS = 0.2
_SECONDS_TO_ANSWER = 5.0
_MOST_BYTES = 1_000_000  # of a log, in one answer


class Start(NamedTuple):
    """The start of a task; the secret comes in `variables`, and is on no command line."""

    command: Sequence[str]
    files: Mapping[str, bytes]
    results: Sequence[str]
    variables: Mapping[str, str]
    hosts: Sequence[str]
    folder: str
    log: str
    threads: int
    grace: float
    is_lead: bool


class News(NamedTuple):
    """The text that a task has printed since the last answer, and the step of its last checkpoint.

    At the end of the task, also its exit status and its result files.
    """

    text: str
    saved_step: int = 0
    status: int | None = None
    results: Mapping[str, bytes] = {}  # not changed by anyone


class TaskActor:
    """An actor of Ray's that starts the process of one task, as often as it is told to."""

    def __init__(self, port: int | None = None, seconds: float = 0.0) -> None:
        self._ports = _reserved(port, seconds)
        self._status: int | None = None
        self._told_step = 0

    def address(self) -> tuple[str, int]:
        """Return the address of this node, and a port that is reserved while this actor lives."""
        return ray.util.get_node_ip_address(), self._ports.ports[0]

    def start(self, start: Start) -> int:
        """Start the task's process, and return its number.

        Raises:
            OSError: The log cannot be written, or there is no such program.
        """
        self._scratch = tempfile.TemporaryDirectory(prefix="tfdist-", ignore_cleanup_errors=True)
        for name, data in start.files.items():
            Path(self._scratch.name, name).write_bytes(data)
        log = Path(start.log)
        log.parent.mkdir(parents=True, exist_ok=True)
        plan = {
            "command": [self._local(word) for word in start.command],
            "env": self._environment(start),
            "cwd": self._folder(start.folder),
            "log": str(log),
            "grace": start.grace,
        }
        self._results = [Path(self._local(word)) for word in start.results]
        self._status, self._left = None, b""
        self._log = log.open("ab+")
        self._log.seek(0, os.SEEK_END)
        self._process = subprocess.Popen(
            [sys.executable, "-I", task_process.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._write(json.dumps(plan).encode() + b"\n")
        self._process.wait()  # it continues in another process
        event = json.loads(self._process.stdout.readline() or '{"error": "it has not started"}')  # type: ignore[union-attr]
        if "error" in event:
            raise OSError(event["error"])
        threading.Thread(target=self._wait, args=(self._process,), daemon=True).start()
        return int(event["pid"])

    def news(self) -> News:
        """Return what is new as soon as there is something, or after some seconds."""
        deadline, told_before = time.monotonic() + _SECONDS_TO_ANSWER, self._told_step
        while True:
            status = self._status
            text = self._read(is_last=status is not None)
            if status is not None and not text:
                files = {path.name: path.read_bytes() for path in self._results if path.exists()}
                return News("", self._saved_step(), status, files)
            self._told_step = self._saved_step()
            if text or self._told_step != told_before or time.monotonic() > deadline:
                return News(text, self._told_step)
            time.sleep(_SECONDS_BETWEEN_READS)

    def end(self) -> None:
        """Send SIGTERM to the task; after its grace it is killed."""
        self._write(b"end\n")

    def _write(self, line: bytes) -> None:
        try:
            self._process.stdin.write(line)  # type: ignore[union-attr]
            self._process.stdin.flush()  # type: ignore[union-attr]
        except BrokenPipeError:
            return  # the task has ended by itself

    def _wait(self, process: "subprocess.Popen[bytes]") -> None:
        line = process.stdout.readline()  # type: ignore[union-attr]
        # Without a line, somebody has killed the process between this actor and the task.
        self._status = int(json.loads(line)["status"]) if line else -9

    def _read(self, *, is_last: bool) -> str:
        """Return the whole lines after those that were read before; at the end, what is left too."""
        data = self._left + self._log.read(_MOST_BYTES)
        whole = len(data) if is_last and len(data) < _MOST_BYTES else data.rfind(b"\n") + 1
        self._left = data[whole:]
        return data[:whole].decode(errors="backslashreplace")

    def _saved_step(self) -> int:
        path = Path(self._scratch.name, SAVED_STEP)
        return int(path.read_text("utf-8")) if path.exists() else 0

    def _environment(self, start: Start) -> dict[str, str]:
        given = {**default_variables(), **inherited_variables(start.hosts)}
        width = Cores(start.threads).environment()  # in place of OMP_NUM_THREADS, which Ray sets
        # TensorFlow would allocate all memory of GPUs that Ray has given to nobody, or to another task.
        hidden = {} if ray.get_gpu_ids() else {"CUDA_VISIBLE_DEVICES": "-1"}
        part = ray.get_runtime_context().get_assigned_resources().get("GPU", 0) % 1
        shares = {SHARES_GPU: "1", "TF_FORCE_GPU_ALLOW_GROWTH": "true"} if part else {}
        own = {"PYTHONPATH": _import_path(), "TMPDIR": self._scratch.name}
        if start.is_lead:
            own |= {PROGRESS_FILE: str(Path(self._scratch.name, "progress.json")), LOG_PROGRESS: "1"}
        return {**given, **width, **hidden, **shares, **own, **start.variables}

    def _folder(self, wanted: str) -> str:
        """Return the folder in which the task runs: that of the job's runtime environment, if it has one."""
        has_own = ray.get_runtime_context().runtime_env.get("working_dir")
        return str(Path.cwd()) if has_own or not (wanted and Path(wanted).is_dir()) else wanted

    def _local(self, word: str) -> str:
        if word == PYTHON:
            return sys.executable
        return word.replace(FILES, self._scratch.name) if word.startswith(FILES) else word


def _reserved(port: int | None, seconds: float) -> LocalPorts:
    """Reserve a free port; if one is wanted, wait so long until whoever had it has ended."""
    if port is None:
        return LocalPorts(1)
    deadline = time.monotonic() + seconds
    while not is_free(port) and time.monotonic() < deadline:
        time.sleep(_SECONDS_BETWEEN_READS)
    return LocalPorts(1, first=port)


def _import_path() -> str:
    """Return the folders from which Ray lets its workers import, besides those of the interpreter."""
    own = (sys.prefix, sys.base_prefix)
    return os.pathsep.join(path for path in sys.path if path and not path.startswith(own))
