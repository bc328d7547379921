"""Start the command of a container again when it is lost, until the chief of its job has ended.

With TFDIST_RESTARTS, `RestartedCommand` starts the command again after exit status 138, and after a signal
that this process has not passed on: that many times, which each new checkpoint renews. Tasks that do not see
the chief's files know no checkpoints. But whenever one of them is lost, the chief ends too, or continues
without it. So they count only losses soon after a start, which may come before the chief knows of them.

If all tasks see the file of the chief's last checkpoint, the chief's container writes a mark beside it when
the chief has ended with 0. A ps or a worker that starts again after that would wait for its chief for ten
minutes. It ends with 0. The mark is that of one job: a later one may have the same folder.
"""

import contextlib
import hashlib
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfdist.errors import LOST, ConfigError, shown
from tfdist.launcher.supervisor.process_tree import groups_in_sessions, reap_child, signal_sessions
from tfdist.launcher.supervisor.restart_policy import SHORT_LIFETIME, Backoff

RESTARTS = "TFDIST_RESTARTS"  # how often the command may be started again without a new checkpoint
SAVED_STEP_FILE = "TFDIST_SAVED_STEP_FILE"  # the file of the chief's last checkpoint, where all tasks see it
_CHIEF_ENDED = "chief_ended"  # the mark of the chief's end with 0
_SECONDS_TO_END_BY_ITSELF = 60.0  # after the chief's end, which tells the tasks that serve it to end
_SECONDS_BETWEEN_LOOKS = 2.0
_SECONDS_BETWEEN_REAPS = 0.1


class EndOfChief:
    """The mark of the clean end of a job's chief, beside the file of its last checkpoint."""

    def __init__(self, saved_step: Path, secret: bytes | None) -> None:
        self._path = saved_step.with_name(_CHIEF_ENDED)
        self._job = hashlib.sha256(b"chief ended" + (secret or b"")).hexdigest()

    def write(self) -> None:
        """Write the mark."""
        self._path.write_text(self._job, "utf-8")

    def remove(self) -> None:
        """Remove the mark of an earlier job."""
        self._path.unlink(missing_ok=True)

    def is_there(self) -> bool:
        """Return whether the chief of this job has ended with 0, as far as the mark can be read."""
        with contextlib.suppress(OSError):
            return self._path.read_text("utf-8") == self._job
        return False


class RestartedCommand:
    """A command that is started again when it is lost, and gets the signals of this process.

    If it serves a chief, this process does not start it again after the mark of that chief's end, and ends it
    if it does not end by itself.
    """

    def __init__(
        self, words: Sequence[str], environ: Mapping[str, str], chief_ended: EndOfChief | None = None
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
