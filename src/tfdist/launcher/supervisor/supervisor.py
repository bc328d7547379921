"""Start the tasks, watch them, start lost ones again, and leave no process behind."""

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from .fork_server import ForkServer
from .log_writer import LogWriter
from .plan import SupervisorPlan, TaskPlan
from .private_network import enter_private_network, why_no_private_network
from .process_tree import adopt_orphans, children_of, die_with_parent, in_session, with_variable
from .restart_policy import Backoff
from .start_child import STOP_SIGNALS, start

__all__ = ["Supervisor", "main"]

_SIGKILL_TIMEOUT = 10.0  # seconds until a process that SIGKILL does not end (a hung device) is reported
_LAUNCHER_DIED = signal.SIGCONT  # it continues a supervisor that was stopped, which no other signal does
_SECONDS_BETWEEN_CHECKS = 1.0  # of the fork server
_NEVER = float("inf")
_ALL_TASKS = ""  # used in place of a task's name


class Supervisor:
    """Run the tasks of a plan until the last of them, and of their descendants, has ended.

    The tasks run in rounds. A lost task is started again within the round if it may restart alone.
    Otherwise the round ends, and the next one starts all tasks.
    """

    def __init__(self, control: socket.socket, plan: SupervisorPlan, heard: bytes, launcher: int) -> None:
        self._control = control
        self._launcher = launcher
        self._plan = plan
        self._tasks = {task.name: task for task in plan.tasks}
        self._allowed = plan.restarts  # without a new checkpoint in between
        self._restarts = self._allowed  # the remaining restarts
        self._backoff: defaultdict[str, Backoff] = defaultdict(Backoff)
        self._fork_server: ForkServer | None = None
        self._killed: set[int] = set()
        self._orphans = 0  # descendants of the tasks that this process adopted and killed
        self._is_sweeping = False
        self._received = heard
        self._next_round = _NEVER
        self._begin_round()
        self._wakeup_reader, ringer = os.pipe()
        for end in (self._wakeup_reader, ringer):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(ringer, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, _LAUNCHER_DIED, *STOP_SIGNALS):  # the wakeup pipe says which
            signal.signal(number, lambda *_: None)
        self._poll = select.poll()
        self._poll.register(self._control, select.POLLIN)
        self._poll.register(self._wakeup_reader, select.POLLIN)
        self._log_writer = LogWriter(plan.tasks)
        self._poll.register(self._log_writer.news, select.POLLIN)

    def run(self) -> None:
        """Start the tasks, in as many rounds as needed, and return when none of their processes is left."""
        remaining: list[int] = []
        should_run = self._settle_network()
        self._log_writer.start(self._control)
        if should_run and self._plan.loads_once and sys.platform == "linux":
            self._open_fork_server()
        while should_run:
            self._begin_round()
            if self._settle_fork_server() and self._start(self._tasks):
                self._watch()
            remaining = self._sweep()
            should_run = not remaining and self._wait_for_next_round()
        if self._fork_server is not None:
            self._fork_server.close()
        shutil.rmtree(self._plan.scratch, ignore_errors=True)  # also if the launcher was killed
        self._log_writer.finish()
        self._forward_news()
        self._send_event(ended=remaining, orphans=self._orphans)

    def _begin_round(self) -> None:
        self._running: dict[int, str] = {}  # names by pid
        self._began: dict[str, float] = {}
        self._restarted: set[str] = set()
        self._restart_at: dict[str, float] = {}  # when each lost task is started again
        self._is_lead_done = self._asked = False
        self._end_at = self._kill_at = self._next_round = _NEVER

    def _watch(self) -> None:
        """Wait until all tasks of this round have ended, or must be killed."""
        while (self._running or self._restart_at) and time.monotonic() < self._kill_at:
            self._wait(min(self._end_at, self._kill_at, *self._restart_at.values()))
            if time.monotonic() >= self._end_at:
                self._ask()
            due = [name for name, when in self._restart_at.items() if when <= time.monotonic()]
            for name in due:
                del self._restart_at[name]
            self._restarted.update(due)
            if due:
                self._start(due)

    def _wait_for_next_round(self) -> bool:
        """Wait until the next round is due; return whether there is one."""
        while time.monotonic() < self._next_round < _NEVER:
            self._wait(self._next_round)
        return self._next_round < _NEVER

    def _wait(self, deadline: float) -> None:
        """Wait for events until this time, and handle them."""
        seconds = deadline - time.monotonic()
        ready = dict(self._poll.poll(None if deadline == _NEVER else max(seconds, 0) * 1000 + 1))
        signals = os.read(self._wakeup_reader, 4096) if self._wakeup_reader in ready else b""
        if _LAUNCHER_DIED in signals and os.getppid() != self._launcher:
            self._kill()
        elif any(number in signals for number in STOP_SIGNALS):
            self._end()
        if self._control.fileno() in ready:
            self._read_commands()
        if self._fork_server is not None and self._fork_server.control.fileno() in ready:
            self._read_fork_server(self._fork_server)
        self._forward_news()
        self._reap()

    def _forward_news(self) -> None:
        with contextlib.suppress(BlockingIOError):  # there is no news
            self._send(os.read(self._log_writer.news, 65536))

    def _send_event(self, **event: Any) -> None:
        self._send(json.dumps(event).encode() + b"\n")

    def _send(self, lines: bytes) -> None:
        # If the launcher was killed, nobody reads; the tasks are ended all the same.
        with contextlib.suppress(OSError):
            self._control.sendall(lines)

    def _read_commands(self) -> None:
        try:
            data = self._control.recv(4096)
        except ConnectionError:
            data = b""
        self._received += data
        self._run_commands()
        if not data:
            self._kill()

    def _run_commands(self) -> None:
        *lines, self._received = self._received.split(b"\n")
        for line in lines:
            match json.loads(line):
                case "kill":
                    self._kill()
                case "end":
                    self._end()
                case "renew":  # the chief has saved a new checkpoint
                    self._restarts = self._allowed
                case {"kill": name}:
                    self._signal(signal.SIGKILL, [name])

    def _settle_network(self) -> bool:
        """Enter a private network if the plan asks for one; return whether the tasks may start."""
        if self._plan.network_isolation == "never":
            return True
        reason = why_no_private_network()
        if not reason:
            enter_private_network()
        required = self._plan.network_isolation == "always"
        self._send_event(network=reason, required=required)
        return not reason or not required

    def _open_fork_server(self) -> None:
        # Output of the loading, which each task would print, goes to the lead's log.
        output = self._log_writer.pipe_of(self._plan.lead)
        self._fork_server = ForkServer(self._plan.tasks, self._plan.command, output)
        self._poll.register(self._fork_server.control, select.POLLIN)

    def _read_fork_server(self, fork_server: ForkServer) -> None:
        if not fork_server.read_state():
            self._poll.unregister(fork_server.control)

    def _settle_fork_server(self) -> bool:
        """Wait until the fork server is ready or has failed; return whether the tasks may start."""
        self._run_commands()
        if os.getppid() != self._launcher:  # it died before this process handled its signal
            self._kill()
        while self._fork_server is not None and self._fork_server.is_loading and self._may_continue():
            self._wait(time.monotonic() + _SECONDS_BETWEEN_CHECKS)
            if reason := self._fork_server.why_stuck():
                self._fork_server.close()
                self._send_event(slow=reason)
        return self._may_continue()

    def _may_continue(self) -> bool:
        return self._end_at == self._kill_at == _NEVER

    def _start(self, names: Iterable[str]) -> bool:
        """Start tasks; end all if one cannot be started."""
        self._began.setdefault(_ALL_TASKS, time.monotonic())
        for name in names:
            pid, error = self._start_one(self._tasks[name], self._log_writer.pipe_of(name))
            if error:
                self._send_event(unstartable=name, error=error, program=self._plan.command[0])
                self._kill()
                return False
            self._running[pid] = name
            self._began[name] = time.monotonic()
            self._send_event(started=name, pid=pid)
        if self._fork_server is not None and not (self._allowed or self._restart_at):
            self._fork_server.close()  # to free its memory
        return True

    def _start_one(self, task: TaskPlan, output: int) -> tuple[int, str]:
        if self._fork_server is not None and (started := self._fork_server.start(task, output)):
            return started
        keeps = [] if task.progress is None else [task.progress]
        return start(task.env, task.cores, self._plan.command, output, keeps)

    def _reap(self) -> None:
        """Collect the exit statuses of ended children, including adopted ones, and react to them."""
        exits = []
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, code = ended[0], os.waitstatus_to_exitcode(ended[1])
                if pid in self._running:
                    # Now: from here on, another process may get the number.
                    exits.append((code, pid, self._running.pop(pid)))
                elif pid == self._log_writer.pid:  # another process killed it
                    self._log_writer.start(self._control)
                elif pid not in self._helpers():
                    self._orphans += code == -signal.SIGKILL and (self._is_sweeping or pid in self._killed)
        # Of tasks that end at the same time, one that a signal ended failed first; a lost one may name
        # another.
        for code, pid, name in sorted(exits, key=lambda end: (end[0] >= 0, end[0] == self._plan.lost)):
            self._send_event(exited=name, pid=pid, code=code, **self._follow(name, code))
            if name in self._restart_at:
                self._kill_leftovers(name, pid)

    def _follow(self, name: str, code: int) -> dict[str, Any]:
        """React to the end of a task; return what to report about it."""
        is_lost = code < 0 or code == self._plan.lost
        if self._asked or self._next_round < _NEVER:
            return {"asked": self._asked, "again": self._next_round < _NEVER}
        if code == 0:
            if name == self._plan.lead:
                self._start_linger()
        elif is_lost and self._is_lead_done and self._tasks[name].serves:
            return {"asked": True, "again": False}  # its chief was already done
        elif is_lost and self._restarts:
            return {"asked": False, "again": True, **self._start_again(name)}
        else:
            self._end()
        return {"asked": False, "again": False}

    def _start_again(self, name: str) -> dict[str, Any]:
        """Set the time at which a lost task, or all tasks, start again; return which, and the pause."""
        self._restarts -= 1
        alone, now = self._tasks[name].alone, time.monotonic()
        restarted = name if alone else _ALL_TASKS
        pause = self._backoff[restarted].pause_after(now - self._began[restarted])
        if alone:
            self._restart_at[name] = now + pause
        else:
            self._next_round = now + pause
            self._end_at = now
        return {"alone": alone, "pause": pause, "restart": self._allowed - self._restarts}

    def _start_linger(self) -> None:
        """Set the time by which the other tasks must end after the lead."""
        self._is_lead_done = True
        self._end_at = min(self._end_at, time.monotonic() + self._plan.linger)
        self._restart_at = {
            name: when for name, when in self._restart_at.items() if not self._tasks[name].serves
        }
        # A server that was just started again may not have met its chief, and would wait for it.
        self._terminate(name for name in self._restarted if self._tasks[name].serves)

    def _end(self) -> None:
        """End all tasks, with SIGTERM first, and start none again."""
        self._allowed, self._restarts, self._next_round = 0, 0, _NEVER
        self._end_at = min(self._end_at, time.monotonic())

    def _ask(self) -> None:
        """Send SIGTERM to every task's process group, and set the time for SIGKILL."""
        self._end_at = _NEVER
        self._restart_at.clear()
        if self._asked:
            return
        self._asked = True
        self._kill_at = min(self._kill_at, time.monotonic() + self._plan.grace)
        if self._running:
            self._send_event(asked=list(self._running.values()), done=self._is_lead_done)
            self._terminate(self._tasks)

    def _kill(self) -> None:
        self._allowed, self._restarts, self._next_round = 0, 0, _NEVER
        self._asked = True
        self._kill_at = 0.0

    def _terminate(self, names: Iterable[str]) -> None:
        names = list(names)
        self._signal(signal.SIGTERM, names)
        self._signal(signal.SIGCONT, names)  # a stopped process does not react otherwise

    def _signal(self, number: signal.Signals, names: Iterable[str]) -> None:
        targets = set(names)
        for pid in (pid for pid, name in self._running.items() if name in targets):
            # The task's process group keeps that number until it is reaped. EPERM: all of the group has
            # changed its user.
            with contextlib.suppress(PermissionError):
                os.killpg(pid, number)

    def _kill_leftovers(self, name: str, pid: int) -> None:
        """Kill what a lost task has left: it may occupy the memory or the port that the next one needs."""
        if sys.platform == "linux":
            # The session has what was forked and has begun no session; the variable marks what was started.
            mark = self._tasks[name].mark
            self._kill_all(lambda: [*in_session(pid), *with_variable(mark)])
        else:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)

    def _sweep(self) -> list[int]:
        """Kill and collect all remaining processes, until none is left that could start another one."""
        self._asked = True
        self._reap()
        self._is_sweeping = True
        self._signal(signal.SIGKILL, self._tasks)
        remaining = self._kill_all(self._remaining)
        self._is_sweeping = False
        return remaining

    def _remaining(self) -> list[int]:
        self._reap()
        # Without PR_SET_CHILD_SUBREAPER, init adopts what a task leaves, out of reach.
        pids = children_of(os.getpid()) if sys.platform == "linux" else list(self._running)
        return [pid for pid in pids if pid not in self._helpers()]

    def _helpers(self) -> set[int]:
        return {helper.pid for helper in (self._log_writer, self._fork_server) if helper is not None}

    def _kill_all(self, find: Callable[[], list[int]]) -> list[int]:
        """Kill processes until `find` returns none; return those that do not end."""
        deadline = time.monotonic() + _SIGKILL_TIMEOUT
        while (pids := find()) and time.monotonic() < deadline:
            for pid in pids:
                self._killed.add(pid)
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.005)
        return pids


def main(control_fd: int, launcher: int) -> None:
    """Run as the supervisor of the launcher at the other end of a socket."""
    # In addition to the end of the stream, which a forked copy of the launcher would keep open.
    die_with_parent(launcher, _LAUNCHER_DIED)
    with socket.socket(fileno=control_fd) as control:
        control.set_inheritable(False)
        received = b""
        while b"\n" not in received:
            if not (data := control.recv(65536)):
                return  # the launcher died before it had sent the plan
            received += data
        line, _, received = received.partition(b"\n")
        plan = SupervisorPlan.from_json(line)
        for task in plan.tasks:
            for fd in (task.log, task.progress):
                if fd is not None:
                    os.set_inheritable(fd, False)
        adopt_orphans()
        Supervisor(control, plan, received, launcher).run()
