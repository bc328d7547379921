"""Run a command as one task, in a container of Kubernetes, Compose, Vertex AI or SageMaker.

    python -m tfdist.engines.container_entrypoint python -m tfdist.train --config {config}

With TFDIST_RESTARTS, it starts the command again after exit status 138, and after a signal that this process
has not passed on: that many times, which each new checkpoint renews. Tasks that do not see the chief's files
know no checkpoints. But whenever one of them is lost, the chief ends too, or continues without it. So they
count only losses soon after a start, which may come before the chief knows of them.

If all tasks see the file of the chief's last checkpoint, the chief's container writes a mark beside it when
the chief has ended with 0. A ps or a worker that starts again after that would wait for its chief for ten
minutes. It ends with 0. The mark is that of one job: a later one may have the same folder.

In clouds the config comes in environment variables. It is written to a file, whose name is passed for the
word {config}. On SageMaker this also does what no part of the service does:

- It passes the cluster on as SM_RESOURCE_CONFIG, and the folders as SM_MODEL_DIR and so on. Images with
  SageMaker's own toolkit set these variables, others do not.
- It prints the name of the task, by which the lines of the container are found.
- It writes why the task has failed to the file that the service shows.
"""

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfdist._utils.write_files import storage_errors, temporary_folder
from tfdist.cluster.config import ClusterConfig
from tfdist.engines.job_description import CONFIG, Job
from tfdist.errors import LOST, ConfigError, exit_with_status, shown
from tfdist.launcher.environment import ENGINE
from tfdist.launcher.send_reports import PROGRESS_FILE, SAVED_STEP
from tfdist.launcher.supervisor.process_tree import (
    adopt_orphans,
    groups_in_sessions,
    reap_child,
    signal_sessions,
)
from tfdist.launcher.supervisor.restart_policy import SHORT_LIFETIME, Backoff
from tfdist.trainer.run_folder import clear_failure, failure_file, write_failure
from tfdist.transport.authentication import find_secret

ENTRYPOINT = ("python", "-m", "tfdist.engines.container_entrypoint")
RESTARTS = "TFDIST_RESTARTS"  # how often the command may be started again without a new checkpoint
SAVED_STEP_FILE = "TFDIST_SAVED_STEP_FILE"  # the file of the chief's last checkpoint, where all tasks see it
NAME = "TFDIST_CONFIG_NAME"  # of the config file, for messages
_CHIEF_ENDED = "chief_ended"  # the mark of the chief's end with 0
_SECONDS_TO_END_BY_ITSELF = 60.0  # after the chief's end, which tells the tasks that serve it to end
_SECONDS_BETWEEN_LOOKS = 2.0
_SECONDS_BETWEEN_REAPS = 0.1
_CONFIG = "TFDIST_CONFIG_"
_PIECE = 512  # bytes of a variable, SageMaker's limit
MOST_BYTES = 60 * _PIECE  # SageMaker and Vertex AI take 100 variables
_OPT_ML = Path("/opt/ml")


def config_variables(job: Job) -> dict[str, str]:
    """Return variables that contain the text of a job's config file; none for a script.

    Raises:
        ConfigError: It is too long, or cannot be read.
    """
    path, text = job.config, job.config_text
    if path is None or text is None:
        return {}
    if (size := len(text.encode())) > MOST_BYTES:
        expected, received = f"at most {MOST_BYTES} bytes", str(size)
        remedy = "Put it into the image, and submit the command: -- python -m tfdist.train --config FILE"
        raise ConfigError(str(path), expected=expected, received=received, remedy=remedy)
    pieces = [""]
    for character in text:
        if len((pieces[-1] + character).encode()) > _PIECE:
            pieces.append("")
        pieces[-1] += character
    return {NAME: path.name, **{f"{_CONFIG}{i}": piece for i, piece in enumerate(pieces)}}


def main(command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the command until it has ended for good; return its exit status."""
    environ = {**_sagemaker_variables(environ), **environ, ENGINE: "1"}
    if not command:
        raise ConfigError("tfdist.engines.container_entrypoint", "needs a command")
    clear_failure(environ)
    with temporary_folder("tfdist-") as folder:
        path = _write_config(Path(folder), environ)
        words = [str(path) if word == CONFIG else word for word in command]
        cluster = ClusterConfig.from_environment(environ=environ)
        if "SM_RESOURCE_CONFIG" in environ:
            print(f"tfdist: this container is {cluster.task}", flush=True)
        shared = environ.get(SAVED_STEP_FILE)
        mark = _Mark(Path(shared), find_secret(environ)) if shared else None
        leads = cluster.is_chief and not cluster.is_evaluator
        if leads:
            saved = Path(environ.setdefault(SAVED_STEP_FILE, str(Path(folder, SAVED_STEP))))
            environ.setdefault(PROGRESS_FILE, str(saved.with_name("progress.json")))
            with storage_errors(saved.parent):
                saved.parent.mkdir(parents=True, exist_ok=True)
                if mark:
                    mark.remove()
        served = mark if cluster.serves else None
        status, end = _RestartedCommand(words, environ, served).run(int(environ.get(RESTARTS, 0)))
        if mark and leads and status == 0:
            with contextlib.suppress(OSError):  # the others then wait, and end all the same
                mark.write()
    failure = failure_file(environ)
    if status and failure is not None and not failure.exists():
        write_failure(environ, f"{' '.join(command)} {end}")
    return status


class _Mark:
    """The mark of the clean end of a job's chief, beside the file of its last checkpoint."""

    def __init__(self, saved_step: Path, secret: bytes | None) -> None:
        self._path = saved_step.with_name(_CHIEF_ENDED)
        self._job = hashlib.sha256(b"chief ended" + (secret or b"")).hexdigest()

    def write(self) -> None:
        self._path.write_text(self._job, "utf-8")

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)

    def is_there(self) -> bool:
        """Return whether the chief of this job has ended with 0, as far as the mark can be read."""
        with contextlib.suppress(OSError):
            return self._path.read_text("utf-8") == self._job
        return False


class _RestartedCommand:
    """A command that is started again when it is lost, and gets the signals of this process.

    If it serves a chief, this process does not start it again after the mark of that chief's end, and ends it
    if it does not end by itself.
    """

    def __init__(
        self, words: Sequence[str], environ: Mapping[str, str], chief_ended: _Mark | None = None
    ) -> None:
        self._words, self._environ, self._chief_ended = words, environ, chief_ended
        path = environ.get(SAVED_STEP_FILE)
        self._saved_step = Path(path) if path else None
        self._told: int | None = None  # the signal that this process has received
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, restarts: int) -> tuple[int, str]:
        """Run the command, and again after it was lost; return its last status, or 1 after all restarts.

        The second value says the same in words.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._pass_on)
        start, left, backoff, saved_before = 1, restarts, Backoff(), self._saved("")
        while True:
            began = time.monotonic()
            status = self._run_once()
            seconds, saved = time.monotonic() - began, self._saved(saved_before)
            if saved != saved_before or (self._saved_step is None and seconds >= SHORT_LIFETIME):
                left, saved_before = restarts, saved
            is_lost = status == LOST or 128 < status <= 128 + max(signal.valid_signals())
            if not is_lost or self._told is not None or RESTARTS not in self._environ:
                return status, f"exited with {status}"
            if self._is_chief_done():
                print(f"tfdist: the command ended with {status} after the chief has ended", flush=True)
                return 0, "ended after the chief"
            if not left:
                end = f"ended with {status}, and no restart is left"
                print(f"tfdist: the command {end}", flush=True)
                return 1, end  # whoever starts containers again after 138 would not know an end
            start, left, pause = start + 1, left - 1, backoff.pause_after(seconds)
            print(f"tfdist: the command ended with {status}: start {start} in {pause:g} s", flush=True)
            if self._is_told_within(pause):
                return status, f"exited with {status}"

    def _is_chief_done(self) -> bool:
        return self._chief_ended is not None and self._chief_ended.is_there()

    def _is_told_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self._told is None and time.monotonic() < deadline:
            time.sleep(0.1)
        return self._told is not None

    def _saved(self, before: str) -> str:
        """Return the step of the last checkpoint; what it was before if that cannot be read now."""
        try:
            return self._saved_step.read_text("utf-8") if self._saved_step else before
        except OSError:  # there is none yet, or its storage does not answer
            return before

    def _run_once(self) -> int:
        try:
            # In a session of its own: signals reach all that a shell script runs.
            self._process = subprocess.Popen(self._words, env=dict(self._environ), start_new_session=True)
        except OSError as error:
            remedy = "Install it in the image"
            raise ConfigError(shown(self._words[0]), error.strerror or str(error), remedy=remedy) from None
        if self._told is not None:
            self._send(self._told)
        status = self._wait(self._process)
        if self._told is not None and status == -self._told:
            status = self._wait_for_rest(self._process.pid, status)
        self._send(signal.SIGKILL)  # to what it has left
        self._process = None  # another process may get its number
        return 128 - status if status < 0 else status

    def _wait_for_rest(self, session: int, status: int) -> int:
        """Wait until the commands of a shell have ended which the signal itself has ended.

        Such a shell does not wait for its commands, which save their work. Return 138 if one of them ends
        with that; the status of the shell otherwise.
        """
        while True:
            is_empty = not groups_in_sessions([session])
            while ended := reap_child():
                status = LOST if ended[1:] == (LOST, session) else status
            if is_empty:
                return status
            time.sleep(_SECONDS_BETWEEN_REAPS)

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        """Wait until the command has ended; end it if its chief ended some time ago."""
        if self._chief_ended is None:
            return process.wait()
        done_at: float | None = None
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(_SECONDS_BETWEEN_LOOKS)
            now = time.monotonic()
            done_at = (done_at or now) if self._is_chief_done() else None
            if done_at is not None and now - done_at >= 2 * _SECONDS_TO_END_BY_ITSELF:
                self._send(signal.SIGKILL)
            elif done_at is not None and now - done_at >= _SECONDS_TO_END_BY_ITSELF:
                self._send(signal.SIGTERM)

    def _pass_on(self, number: int, _: Any) -> None:
        self._told = number
        self._send(number)

    def _send(self, number: int) -> None:
        """Send a signal to all processes of the command."""
        if self._process is not None:
            signal_sessions([self._process.pid], signal.Signals(number))


def _sagemaker_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what SageMaker's own toolkit would set; nothing elsewhere."""
    folder = Path(environ.get("SM_INPUT_CONFIG_DIR") or _OPT_ML / "input" / "config")
    path = folder / "resourceconfig.json"
    if not path.is_file():
        return {}
    opt_ml = folder.parents[1]
    return {
        "SM_RESOURCE_CONFIG": path.read_text("utf-8"),
        "SM_MODEL_DIR": str(opt_ml / "model"),
        "SM_OUTPUT_DIR": str(opt_ml / "output"),
        "SM_OUTPUT_DATA_DIR": str(opt_ml / "output" / "data"),
    }


def _write_config(folder: Path, environ: Mapping[str, str]) -> Path | None:
    if not (name := environ.get(NAME)):
        return None
    pieces: list[str] = []
    while (piece := environ.get(f"{_CONFIG}{len(pieces)}")) is not None:
        pieces.append(piece)
    path = folder / Path(name).name
    path.write_text("".join(pieces), "utf-8")
    return path


if __name__ == "__main__":
    adopt_orphans()  # to learn how they end
    exit_with_status(lambda: main(sys.argv[1:], os.environ))
