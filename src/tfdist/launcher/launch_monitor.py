"""Monitor the tasks of one launch, from the supervisor's events to the result."""

import contextlib
import os
import select
import shlex
import signal
import time
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any, NamedTuple

from tfdist._utils.check_and_expand_paths import exists
from tfdist._utils.readable_text import count
from tfdist.cluster.config import ClusterConfig, Task
from tfdist.errors import LOST, ConfigError, TfdistError
from tfdist.launcher import run_events
from tfdist.launcher.dispatch_events import LaunchOutput
from tfdist.launcher.environment import LAUNCH
from tfdist.launcher.hide_secrets import without_secrets
from tfdist.launcher.outcome import LaunchError, LaunchReport, TaskExit
from tfdist.launcher.report_messages import Joined, JoinedPieces, Silence, read_line
from tfdist.launcher.start_supervisor import SupervisorProcess
from tfdist.launcher.supervisor.plan import SupervisorPlan
from tfdist.launcher.supervisor.process_tree import is_stopped, with_variable
from tfdist.launcher.supervisor.restart_policy import NewCheckpoints
from tfdist.launcher.task_logs import TaskLog

_CLEANUP_TIMEOUT = 10.0
_SECONDS_AFTER_GRACE = 30.0  # in which the supervisor kills and collects what has not ended
_POLL_MS = 100
_SECONDS_BETWEEN_CHECKS = 1.0
# In the last lines of a script that has asked for a host that a private network does not reach.
_OUT_OF_REACH = ("in name resolution", "Name or service not known", "Network is unreachable")


class StartedProcess(NamedTuple):
    """The process of a task, and when it started."""

    pid: int
    began: float


class LaunchMonitor:
    """One launch: reads the supervisor's events, shows them, and forwards the user's signals."""

    def __init__(
        self,
        cluster: ClusterConfig,
        plan: SupervisorPlan,
        *,
        output: LaunchOutput,
        logs: Mapping[Task, TaskLog],
        supervisor: SupervisorProcess,
        reports: int,
        mark: str,
        heartbeat_timeout: float | None,
    ) -> None:
        """Prepare to follow a launch.

        Args:
            cluster: The cluster.
            plan: What the supervisor was told.
            output: Records and shows what happens.
            logs: The logs of the tasks.
            supervisor: The supervisor.
            reports: The descriptor from which the chief's reports are read.
            mark: The value of the variable that all processes of the launch have.
            heartbeat_timeout: The seconds that a task may be stopped; None for no limit.
        """
        self._cluster, self._logs, self._reports, self._pieces = cluster, logs, reports, JoinedPieces()
        self._output, self._supervisor = output, supervisor
        self._seconds_to_end = plan.grace + _SECONDS_AFTER_GRACE
        self._end_by = float("inf")
        self._grace = f"SIGTERM, and SIGKILL after {plan.grace:g} s"
        self._linger, self._restarts = f"{plan.linger:g} s", plan.restarts
        self._heartbeat_timeout = heartbeat_timeout
        self._mark = mark
        self._began = time.monotonic()
        self._signals: list[int] = []
        self._signals_reported = 0
        self._is_killing = False
        self._running: dict[Task, StartedProcess] = {}
        self._stopped: dict[Task, float] = {}  # the stopped ones, and since when
        self._checked_at = 0.0
        # Tasks that are being killed because they were stopped too long.
        self._being_killed: set[Task] = set()
        self._exits: list[TaskExit] = []
        self._restarted = 0  # how often
        self._checkpoints = NewCheckpoints()
        self._error: TfdistError | None = None
        self._without_room: tuple[str, str] | None = (
            None  # the first task that could not be forked again, and why
        )
        self._is_private = False
        self._has_joined = False
        self._is_over = False

    def stop(self, number: int, frame: FrameType | None = None) -> None:
        """Tell the supervisor to end all tasks, or to kill them the second time; this is a signal handler.

        SIGHUP is no second signal: systemd sends it besides SIGTERM, and the kernel and a shell may both send
        it for one terminal that is closed.
        """
        self._signals.append(number)
        self._end_by = min(self._end_by, time.monotonic() + self._seconds_to_end)
        self._is_killing = sum(other != signal.SIGHUP for other in self._signals) > 1
        self._supervisor.send("kill" if self._is_killing else "end")

    def begin(self, command: Sequence[str], shares: str, options: Mapping[str, Any]) -> None:
        """Record the start of the launch."""
        tasks = {str(task): self._cluster.address(task) for task in self._cluster.tasks()}
        words = without_secrets(command)
        self._output.record(
            run_events.LaunchStarted(tasks=tasks, command=words, shares=shares, options=dict(options))
        )

    def follow(self) -> LaunchReport:
        """Show what happens until all tasks have ended; then return the report, or raise an error."""
        try:
            report = self._follow()
        except TfdistError as error:
            self._record_end(str(error))
            raise
        self._record_end("")
        return report

    def _follow(self) -> LaunchReport:
        poll = select.poll()
        poll.register(self._supervisor.control, select.POLLIN)
        poll.register(self._reports, select.POLLIN)
        while not self._is_over:
            more = self._output.screen.refresh()
            with self._output.screen.room_wakes(poll):
                ready = {fd for fd, _ in poll.poll(0 if more else _POLL_MS)}
            if self._reports in ready:
                self._read_reports(os.read(self._reports, 1 << 20))
            if self._supervisor.control.fileno() in ready:
                self._read_events()
            if len(self._signals) > self._signals_reported:
                self._say_signal()
            if time.monotonic() - self._checked_at > _SECONDS_BETWEEN_CHECKS:
                self._checked_at = time.monotonic()
                self._check_supervisor()
                if self._heartbeat_timeout is not None:
                    self._end_stopped(self._heartbeat_timeout)
        with contextlib.suppress(BlockingIOError):
            self._read_reports(os.read(self._reports, 1 << 20))  # the last reports of the chief
        return self._result()

    def say(self, text: str) -> None:
        """Show a line of the launcher."""
        self._output.screen.say(text)

    def warn_of_exposure(self, reason: str) -> None:
        """Record and warn that others can reach the tasks."""
        self._output.record(run_events.NetworkChosen(is_private=False, reason=reason))
        addresses = (self._cluster.address(task) for task in self._cluster.tasks())
        ports = ", ".join(address.rpartition(":")[2] for address in addresses)
        self.say(
            f"WARNING: no private network ({reason}): anyone who reaches port {ports} of this machine can run"
            " code in TensorFlow's servers. Close them to others (docs/security.md)"
        )

    def _record_end(self, problem: str) -> None:
        seconds = time.monotonic() - self._began
        self._output.record(
            run_events.LaunchEnded(seconds=seconds, restarts=self._restarted, problem=problem)
        )

    def _result(self) -> LaunchReport:
        failures = [end for end in self._exits if end.failed]
        tail: list[str] = []
        if failures:
            tail = self._output.last_lines(failures[0].task, failures[0].log)
            self._show_rest()
            self.say("\n  ".join([f"the last lines of {failures[0].task}:", *tail]))
            if self._is_private and any(words in line for line in tail for words in _OUT_OF_REACH):
                self.say(
                    "the tasks reach nothing outside of their private network. Run the script once as one"
                    " process, so that its downloads are on the disk, or set network_isolation to never"
                )
        if lost := [f"{end.task} {end}" for end in self._exits if end.was_survived]:
            self._show_rest()
            self.say(f"lost, and started again: {'; '.join(lost)}")
        self._show_rest()
        if self._error is not None:
            raise self._error
        if self._without_room is not None:
            name, reason = self._without_room
            problem = f"cannot be started again: {reason}"
            raise LaunchError(name, problem, exit_code=LOST, exits=self._exits)
        if failures:
            raise LaunchError.of_failures(self._exits, tail, self._restarted)
        lead = self._cluster.lead
        if any(end.task == lead and end.code == 0 and not end.again for end in self._exits):
            seconds = time.monotonic() - self._began
            return LaunchReport(tuple(self._exits), self._is_private, seconds, self._has_joined)
        if self._signals:
            raise LaunchError.of_signal(self._signals[0], self._exits, lead)
        problem = "another process told its supervisor to end"
        raise LaunchError.of_supervisor(problem, self._exits, lead, signal.SIGTERM)

    def _show_rest(self) -> None:
        """Show the rest of the output, however long that takes, or until the next signal."""
        signals = len(self._signals)
        poll = select.poll()
        while len(self._signals) == signals:
            if not self._output.screen.refresh(to_the_end=True):
                if not self._output.screen.has_unwritten:
                    return
                with self._output.screen.room_wakes(poll):
                    poll.poll(_POLL_MS)

    def _read_reports(self, data: bytes) -> None:
        progress: run_events.Progressed | None = None
        for line in data.splitlines():
            match read_line(self._pieces.add(line)):
                case None:
                    continue
                case Silence() as report:
                    self._end_silent(report)
                case Joined(has_joined):
                    self._has_joined = has_joined
                case run_events.Progressed() as report:
                    progress = report
                case event:  # the chief has recorded it
                    self._output.show(event)
                    if isinstance(event, run_events.CheckpointSaved) and self._checkpoints.is_new(event.step):
                        self._supervisor.send("renew")
        if progress is not None:
            self._output.show(run_events.stamped(progress))

    def _check_supervisor(self) -> None:
        """Continue the supervisor if somebody has stopped it, and kill it if it does not end in time."""
        if is_stopped(self._supervisor.pid):
            self.say("the supervisor of the tasks was stopped (SIGSTOP): continuing it")
            self._supervisor.send_signal(signal.SIGCONT)
        if time.monotonic() > self._end_by:
            self._end_by = float("inf")
            self.say(f"the supervisor has not ended the tasks within {self._seconds_to_end:g} s: killing it")
            # Then the kernel kills the tasks, and `_lose_supervisor` kills what they have started.
            self._supervisor.send_signal(signal.SIGKILL)

    def _end_stopped(self, patience: float) -> None:
        """Kill tasks that have been stopped for too long: an evaluator has no server that could be asked."""
        now = time.monotonic()
        stopped = [task for task, process in self._running.items() if is_stopped(process.pid)]
        self._stopped = {task: self._stopped.get(task, now) for task in stopped}
        for task, since in self._stopped.items():
            if now - since >= patience:
                self._end_silent(Silence(str(task), now - since))

    def _end_silent(self, report: Silence) -> None:
        task = next((task for task in self._running if str(task) == report.silent), None)
        if task is None or task in self._being_killed:
            return
        # The silent process may have been lost, and this one may have started since.
        if time.monotonic() - self._running[task].began < report.seconds:
            return
        self._being_killed.add(task)
        self._output.record(run_events.TaskKilled(task=str(task), seconds=report.seconds))
        self.say(f"{task} silent for {round(report.seconds, 1):g} s: killing it")
        self._supervisor.send({"kill": str(task)})

    def _read_events(self) -> None:
        for event in self._supervisor.received():
            self._handle(event)
        if self._supervisor.is_gone and not self._is_over:
            self._lose_supervisor()

    def _handle(self, event: dict[str, Any]) -> None:
        match event:
            case {"network": ""}:
                self._is_private = True
                self._output.record(run_events.NetworkChosen(is_private=True, reason=""))
                self.say("the tasks live in a private network: they reach each other and nobody else")
            case {"network": reason, "required": True}:
                self._error = ConfigError(
                    "network_isolation", f"no private network: {reason}", remedy="Set it to 'auto'"
                )
            case {"network": reason}:
                self.warn_of_exposure(reason)
            case {"slow": reason}:
                self.say(f"the process that loads for all tasks {reason}: starting the tasks one by one")
            case {"unstartable": name, "error": reason, "program": program}:
                self._error = self._unstartable(name, program, reason)
            case {"lost": name, "error": reason, "again": again}:
                self.say(f"cannot start {name} again: {reason}")
                if not again:
                    self._without_room = self._without_room or (name, reason)
                elif event["pause"] is not None:
                    self._say_restart(Task.parse(name), event["alone"], event["pause"], event["restart"])
            case {"started": name, "pid": pid}:
                self._running[Task.parse(name)] = StartedProcess(pid, time.monotonic())
                if name == str(self._cluster.lead):
                    self._checkpoints.begin_life()
                self._output.record(run_events.TaskStarted(task=name, pid=pid))
            case {"exited": name, "code": code, "asked": asked, "again": again}:
                self._note_exit(Task.parse(name), code, asked, again, is_late=event["late"])
                if event["pause"] is not None:
                    self._say_restart(Task.parse(name), event["alone"], event["pause"], event["restart"])
            case {"unwritable": name, "reason": reason}:
                lost = f"what {name} prints is lost until there is room"
                self.say(f"WARNING: cannot write {self._logs[Task.parse(name)].path} ({reason}): {lost}")
            case {"large": name, "bytes": size}:
                self.say(f"WARNING: {self._logs[Task.parse(name)].path} has grown to {size / 1e9:.1f} GB")
            case {"asked": names, "done": done}:
                self._say_ending(", ".join(names), done)
            case {"ended": left, "orphans": orphans}:
                self._is_over = True
                if orphans:
                    self.say(f"killed {count(orphans, 'process', 'processes')} that the tasks had started")
                if left:
                    problem = f"SIGKILL has not ended the processes {left}; see their state with ps"
                    code = LOST if any(end.failed and end.lost for end in self._exits) else 1
                    self._error = LaunchError("launcher", problem, exit_code=code, exits=self._exits)

    def _unstartable(self, name: str, program: str, reason: str) -> TfdistError:
        # A task that has started before is no mistake of the user.
        if any(str(end.task) == name for end in self._exits):
            return LaunchError(name, f"cannot start {program!r} again: {reason}", exits=self._exits)
        is_script = program.endswith(".py") and exists(program)
        remedy = f"Write -- python {shlex.quote(program)}" if is_script else ""
        return ConfigError("command", f"{name} cannot start {program!r}: {reason}", remedy=remedy)

    def _note_exit(self, task: Task, code: int, asked: bool, again: bool, *, is_late: bool) -> None:
        self._being_killed.discard(task)
        task_exit = TaskExit(task, self._running.pop(task).pid, code, asked, self._logs[task].path, again)
        self._exits.append(task_exit)
        self._output.record(
            run_events.TaskExited(
                task=str(task), pid=task_exit.pid, status=code, was_asked=asked, starts_again=again
            )
        )
        if code and not asked:
            self.say(f"{task} {task_exit}")
        elif code and is_late:
            self.say(f"{task} {task_exit}, after {self._cluster.lead} was done")
        elif code == -signal.SIGKILL:
            self.say(f"{task} had to be killed (SIGKILL, pid {task_exit.pid})")

    def _say_restart(self, task: Task, alone: bool, pause: float, restart: int) -> None:
        self._restarted += 1
        self._output.record(
            run_events.TasksRestarting(
                task=str(task), all_tasks=not alone, pause=pause, restart=restart, restarts=self._restarts
            )
        )
        what = f"{task} again, alone" if alone else "all tasks again"
        when = f" in {pause:g} s" if pause else ""
        self.say(f"starting {what}{when} (restart {restart} of {self._restarts})")

    def _say_ending(self, names: str, done: bool) -> None:
        if self._signals:
            return  # reported already
        if done:
            lead = self._cluster.lead
            self.say(f"{lead} is done; {names} did not end within {self._linger}: ending ({self._grace})")
        else:
            self.say(f"ending {names} ({self._grace})")

    def _say_signal(self) -> None:
        is_first, self._signals_reported = not self._signals_reported, len(self._signals)
        counted = [number for number in self._signals if number != signal.SIGHUP] or self._signals
        name = signal.Signals(counted[-1]).name
        if self._is_killing:
            self.say(f"{name}: killing the tasks")
        elif is_first:
            second = "" if name == "SIGHUP" else f" or a second {name}"
            self.say(f"{name}: ending the tasks ({self._grace}{second})")

    def _lose_supervisor(self) -> None:
        """Kill what is left after the supervisor was killed: the kernel has killed only the tasks."""
        self._is_over = True
        deadline = time.monotonic() + _CLEANUP_TIMEOUT
        while (left := with_variable(f"{LAUNCH}={self._mark}")) and time.monotonic() < deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        names = ", ".join(map(str, self._running)) or "no task"
        problem, number = f"its supervisor was killed, and {names} with it", next(iter(self._signals), None)
        self._error = LaunchError.of_supervisor(problem, self._exits, self._cluster.lead, number)
