"""Type the real command as often as it takes, and see from the outside how far it is and who its tasks are."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gates import GATES, Gates

import proc

HERE = Path(__file__).parent
MARK = "FAULTS_MARK"
TORN = "torn"  # the file that marks a checkpoint as such, until it is replaced
SECONDS = 400  # the hard limit of anything that is waited for
_SECONDS_TO_END = 100
_BETWEEN_LOOKS = 0.002


class Training:
    """Run one training: start its command, as often as needed, and read what it leaves in a folder.

    Of a cluster whose tasks are started by hand, it is one task, on the host that its command is prefixed with.

    Attributes:
        files: A pattern of the files that whoever starts the tasks adds to the folder of the run.
        gates: The places where the run can be held.
        is_launched: Whether a launcher starts the tasks, which removes what they leave in temporary folders.
    """

    files = ""

    def __init__(
        self, folder: Path, config: dict[str, Any], cache: str, *, task: str = "", prefix: Sequence[str] = ()
    ) -> None:
        self.folder, self.run = folder, folder / "run"
        self.config = config
        self.total: int = config["train"]["steps"]
        self.is_launched = bool(config.get("cluster"))
        self.gates = Gates(folder / "gates")
        self.mark = uuid.uuid4().hex
        self._temporary = folder / "tmp"
        self._temporary.mkdir(parents=True, exist_ok=True)
        self._said = folder / f"said{task}.txt"
        self._said.touch()
        file = folder / "config.yaml"
        file.write_text(json.dumps(config))  # which YAML reads
        words = [sys.executable, "-m", "tfdist.train", "--config", str(file), "--run_dir", str(self.run)]
        self.command = [*prefix, *words, *(["--task", task] if task else [])]
        self.environ = {
            **os.environ,
            "PYTHONPATH": f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
            "TFDIST_CACHE_DIR": cache,
            "CUDA_VISIBLE_DEVICES": "-1",
            "TMPDIR": str(self._temporary),
            MARK: self.mark,
            GATES: str(self.gates.folder),
        }
        self.process: subprocess.Popen[bytes] | None = None
        self.clock: Any = None  # what sets the clock of its tasks, where a fault does
        self.past: list[list[dict[str, int]]] = []  # histories that a fault has damaged

    # -- the command --

    def __enter__(self) -> "Training":
        return self

    def __exit__(self, *_: object) -> None:
        """End whatever is left of it."""
        for pid in self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.process is not None:
            self.process.wait()

    def start(self) -> None:
        """Type the command."""
        with self._said.open("ab") as said:
            self.process = subprocess.Popen(
                self.command, env=self.environ, stdout=said, stderr=said, start_new_session=True
            )

    def status(self) -> int | None:
        """Return the command's exit status, or None if it has not ended."""
        return self.process.poll() if self.process is not None else None

    def end(self) -> int:
        """Wait until the command has ended, with all that it has started; give its exit status."""
        self.until(lambda: self.status() is not None, "the command ends")
        self.until(lambda: not self.alive(), "all processes of an ended command end", _SECONDS_TO_END)
        return self.process.returncode

    def until(self, condition: Callable[[], Any], what: str, seconds: float = SECONDS) -> Any:
        """Wait until something holds, and give it."""
        give_up = time.monotonic() + seconds
        begun = time.thread_time()
        while not (found := condition()):
            assert time.monotonic() < give_up, f"not within {seconds} s: {what}\n{self.tail()}"
            # To look through all processes takes a core from the run that is waited for.
            time.sleep(max(_BETWEEN_LOOKS, 4 * (time.thread_time() - begun)))
            begun = time.thread_time()
        return found

    # -- what is seen of it --

    def said(self) -> str:
        """Return all that the command has printed so far."""
        return self._said.read_text(errors="replace")

    def tail(self) -> str:
        """Return the last output of the command and of its tasks, and which processes are alive."""
        logs = sorted(self.run.glob("logs/*.log"))
        told = [
            f"--- {each.name}\n{each.read_text(errors='replace')[-3000:]}" for each in [self._said, *logs]
        ]
        return "\n".join([*told, f"--- alive: {self.alive()}"])

    def alive(self) -> dict[int, str]:
        """Find all processes, zombies aside, that have come of the command."""
        return {process.pid: process.command for process in proc.with_variable(MARK, self.mark)}

    def tasks(self) -> dict[str, int]:
        """Return the process ids of the running tasks by name, and of the command itself as `launcher`."""
        found = {}
        for process in proc.with_variable(MARK, self.mark):
            if process.task and "tfdist.train" in process.command:
                # A child that it forks looks the same at first.
                found[process.task] = min(process.pid, found.get(process.task, process.pid))
        if self.process is not None and self.status() is None:
            found["launcher"] = self.process.pid
        return found

    def newest(self) -> int:
        """Return the step of the newest checkpoint that no fault has torn, or 0."""
        folder = self.run / "checkpoints"
        whole = (name for name in _names(folder) if name.isdigit() and not (folder / name / TORN).exists())
        return max(map(int, whole), default=0)

    def partial(self, what: str) -> set[str]:
        """Return the names of checkpoints or exports whose writing is under way or was interrupted."""
        return {name for name in _names(self.run / what) if name.startswith(".partial-")}

    def reached(self) -> int:
        """Return the step that the run has reached, or 0."""
        try:
            text = (self.run / "checkpoints" / "reached").read_text().strip()
        except FileNotFoundError:
            return 0
        return int(text) if text.isdigit() else 0  # a fault may have damaged it

    def history(self) -> list[dict[str, int]]:
        """Return for each start of the run its first step, and how many steps were lost."""
        try:
            return json.loads((self.run / "checkpoints" / "history.json").read_text())
        except (FileNotFoundError, json.JSONDecodeError):  # a fault may have damaged it
            return []

    def report(self) -> dict[str, Any]:
        """Read the report of the run."""
        return json.loads((self.run / "report.json").read_text())


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []
