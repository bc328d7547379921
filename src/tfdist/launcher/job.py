"""Follow the tasks of one launch, from what the warden tells to the verdict."""

import contextlib
import json
import os
import select
import signal
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, TextIO

from tfdist.cluster import ClusterConfig, Task
from tfdist.errors import ConfigError, TfdistError
from tfdist.launcher.outcome import LaunchError, LaunchReport, TaskExit
from tfdist.launcher.progress import Silence, read_reports
from tfdist.launcher.screen import LogTail, Screen, last_lines
from tfdist.launcher.warden.processes import is_stopped, with_variable

__all__ = ["LAUNCH", "Job", "TaskLog"]

LAUNCH = "TFDIST_LAUNCH"  # the variable by which every descendant of a task can be told
_TAIL_LINES = 20
_SECONDS_TO_FIND_ALL = 10.0
_PATIENCE_MS = 100
_SECONDS_BETWEEN_LOOKS = 1.0


class TaskLog(NamedTuple):
    """Hold a task's open log file, and where this launch begins in it."""

    path: Path
    fd: int
    start: int


class Life(NamedTuple):
    """Hold which process a task is, and since when."""

    pid: int
    began: float


class Job:
    """Listen to the warden, show what happens, and pass on what the user wants."""

    def __init__(
        self,
        cluster: ClusterConfig,
        logs: Mapping[Task, TaskLog],
        control: socket.socket,
        reports: int,
        stream: TextIO,
        plan: Mapping[str, Any],
        mark: str,
    ) -> None:
        self._cluster, self._logs, self._control, self._reports = cluster, logs, control, reports
        self._grace = f"SIGTERM, and SIGKILL after {plan['grace']:g} s"
        self._linger, self._restarts = f"{plan['linger']:g} s", plan["restarts"]
        self._silence: float | None = plan["silence"]
        self._mark = mark
        self._tails = [LogTail(str(task), log.path, log.start) for task, log in logs.items()]
        self._screen = Screen(stream, self._tails)
        self._began = time.monotonic()
        self._heard = b""
        self._signals: list[int] = []
        self._signals_said = 0
        self._running: dict[Task, Life] = {}
        self._stopped: dict[Task, float] = {}  # of those, which are stopped, and since when
        self._looked_at = 0.0
        self._condemned: set[Task] = set()  # and which are being killed for their silence
        self._exits: list[TaskExit] = []
        self._restarted = 0  # times
        self._error: TfdistError | None = None
        self._is_private = False
        self._is_over = False

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_: object) -> None:
        self._screen.close()
        for tail in self._tails:
            tail.close()

    def stop(self, number: int, frame: FrameType | None = None) -> None:
        """Have all tasks ended, the second time at once; this is a signal handler."""
        self._signals.append(number)
        self._send("end" if len(self._signals) == 1 else "kill")

    def follow(self) -> LaunchReport:
        """Show what happens until everything has ended; then give the report, or raise what went wrong."""
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._reports, select.POLLIN)
        while not self._is_over:
            more = self._screen.refresh()
            with self._screen.room_wakes(poll):
                ready = {fd for fd, _ in poll.poll(0 if more else _PATIENCE_MS)}
            if self._reports in ready:
                self._take_reports(os.read(self._reports, 1 << 20))
            if self._control.fileno() in ready:
                self._listen()
            if len(self._signals) > self._signals_said:
                self._say_signal()
            if self._silence is not None and time.monotonic() - self._looked_at > _SECONDS_BETWEEN_LOOKS:
                self._end_stopped(self._silence)
        return self._verdict()

    def say(self, text: str) -> None:
        """Show a line of the launcher's own."""
        self._screen.say(text)

    def warn_of_exposure(self, reason: str) -> None:
        """Warn that others can reach the tasks."""
        addresses = (self._cluster.address(task) for task in self._cluster.tasks())
        ports = ", ".join(address.rpartition(":")[2] for address in addresses)
        self.say(
            f"WARNING: no private network ({reason}): whoever reaches port {ports} of this machine can run"
            " code in TensorFlow's servers. Close them to others (docs/security.md)"
        )

    def _verdict(self) -> LaunchReport:
        failures = [each for each in self._exits if each.failed]
        tail: list[str] = []
        if failures:
            tail = last_lines(failures[0].log, self._logs[failures[0].task].start, _TAIL_LINES)
            self._show_rest()
            self.say("\n  ".join([f"the last lines of {failures[0].task}:", *tail]))
        if lost := [f"{each.task} {each}" for each in self._exits if each.was_survived]:
            self._show_rest()
            self.say(f"lost, and started again: {'; '.join(lost)}")
        self._show_rest()
        if self._error is not None:
            raise self._error
        if failures:
            raise LaunchError.of_failures(self._exits, tail, self._restarted)
        lead = self._cluster.lead
        if any(each.task == lead and each.code == 0 and not each.again for each in self._exits):
            return LaunchReport(tuple(self._exits), self._is_private, time.monotonic() - self._began)
        if self._signals:
            raise LaunchError.of_signal(self._signals[0], self._exits)
        raise LaunchError("launcher", "somebody told its warden to end", exits=self._exits)

    def _show_rest(self) -> None:
        """Show all, however long the terminal or pipe takes for it, or until the next signal."""
        signals = len(self._signals)
        poll = select.poll()
        while len(self._signals) == signals:
            if not self._screen.refresh(to_the_end=True):
                if not self._screen.has_unwritten:
                    return
                with self._screen.room_wakes(poll):
                    poll.poll(_PATIENCE_MS)

    def _take_reports(self, data: bytes) -> None:
        progress = None
        for report in read_reports(data):
            if isinstance(report, Silence):
                self._end_silent(report)
            else:
                progress = report
        if progress is not None:
            self._screen.progress(progress)

    def _end_stopped(self, patience: float) -> None:
        """Take tasks that have been stopped for too long for lost: an evaluator has no server to be asked."""
        self._looked_at = now = time.monotonic()
        stopped = [task for task, life in self._running.items() if is_stopped(life.pid)]
        self._stopped = {task: self._stopped.get(task, now) for task in stopped}
        for task, since in self._stopped.items():
            if now - since >= patience:
                self._end_silent(Silence(str(task), now - since))

    def _end_silent(self, report: Silence) -> None:
        task = next((each for each in self._running if str(each) == report.silent), None)
        if task is None or task in self._condemned:
            return
        # The one that was silent may have been lost, and this one started since.
        if time.monotonic() - self._running[task].began < report.seconds:
            return
        self._condemned.add(task)
        self.say(f"{task} silent for {round(report.seconds, 1):g} s: killing it")
        self._send({"kill": str(task)})

    def _send(self, what: object) -> None:
        with contextlib.suppress(OSError):  # the warden has ended already
            self._control.send(json.dumps(what).encode() + b"\n")

    def _listen(self) -> None:
        try:
            data = self._control.recv(65536)
        except ConnectionError:
            data = b""
        *lines, self._heard = (self._heard + data).split(b"\n")
        for line in lines:
            self._learn(json.loads(line))
        if not data and not self._is_over:
            self._lose_warden()

    def _learn(self, event: dict[str, Any]) -> None:
        match event:
            case {"network": ""}:
                self._is_private = True
                self.say("the tasks live in a private network: they reach each other and nobody else")
            case {"network": reason, "required": True}:
                self._error = ConfigError("isolate", f"no private network: {reason}", remedy="Say 'auto'")
            case {"network": reason}:
                self.warn_of_exposure(reason)
            case {"unstartable": name, "error": reason, "program": program}:
                self._error = self._unstartable(name, repr(program), reason)
            case {"started": name, "pid": pid}:
                self._running[Task.parse(name)] = Life(pid, time.monotonic())
            case {"exited": name, "code": code, "asked": asked, "again": again}:
                self._note_exit(Task.parse(name), code, asked, again)
                if "pause" in event:
                    self._say_again(Task.parse(name), event["alone"], event["pause"])
            case {"unwritable": name, "reason": reason}:
                lost = f"what {name} prints is lost until there is room"
                self.say(f"WARNING: cannot write {self._logs[Task.parse(name)].path} ({reason}): {lost}")
            case {"large": name, "bytes": size}:
                self.say(f"WARNING: {self._logs[Task.parse(name)].path} has grown to {size / 1e9:.1f} GB")
            case {"asked": names, "done": done}:
                self._say_asked(", ".join(names), done)
            case {"ended": left, "orphans": orphans}:
                self._is_over = True
                if orphans:
                    what = "1 process" if orphans == 1 else f"{orphans} processes"
                    self.say(f"killed {what} that the tasks had started")
                if left:
                    problem = f"SIGKILL has not ended the processes {left}; see their state with ps"
                    self._error = LaunchError("launcher", problem, exits=self._exits)

    def _unstartable(self, name: str, program: str, reason: str) -> TfdistError:
        if any(str(each.task) == name for each in self._exits):  # it could be once: no mistake of the user's
            return LaunchError(name, f"cannot start {program} again: {reason}", exits=self._exits)
        return ConfigError("command", f"{name} cannot start {program}: {reason}")

    def _note_exit(self, task: Task, code: int, asked: bool, again: bool) -> None:
        self._condemned.discard(task)
        ended = TaskExit(task, self._running.pop(task).pid, code, asked, self._logs[task].path, again)
        self._exits.append(ended)
        if code and not asked:
            self.say(f"{task} {ended}")
        elif code == -signal.SIGKILL:
            self.say(f"{task} had to be killed (SIGKILL, pid {ended.pid})")

    def _say_again(self, task: Task, alone: bool, pause: float) -> None:
        self._restarted += 1
        what = f"{task} again, alone" if alone else "all tasks again"
        when = f" in {pause:g} s" if pause else ""
        self.say(f"starting {what}{when} (restart {self._restarted} of {self._restarts})")

    def _say_asked(self, names: str, done: bool) -> None:
        if self._signals:
            return  # said already
        if done:
            lead = self._cluster.lead
            self.say(f"{lead} is done; {names} did not end within {self._linger}: ending ({self._grace})")
        else:
            self.say(f"ending {names} ({self._grace})")

    def _say_signal(self) -> None:
        self._signals_said = len(self._signals)
        name = signal.Signals(self._signals[-1]).name
        how = f"ending the tasks ({self._grace} or a second {name})"
        self.say(f"{name}: {how if self._signals_said == 1 else 'killing the tasks'}")

    def _lose_warden(self) -> None:
        """End what is left where somebody has killed the warden: the kernel has killed the tasks alone."""
        self._is_over = True
        give_up = time.monotonic() + _SECONDS_TO_FIND_ALL
        while (left := self._strays()) and time.monotonic() < give_up:
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        names = ", ".join(map(str, self._running)) or "no task"
        self._error = LaunchError(
            "launcher", f"its warden was killed, and {names} with it", exits=self._exits
        )

    def _strays(self) -> list[int]:
        return with_variable(*(f"{LAUNCH}={self._mark}/{task}" for task in self._cluster.tasks()))
