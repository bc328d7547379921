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
from collections.abc import Callable, Collection, Iterable
from typing import Any

from .fork_server import ForkServer
from .log_writer import LogWriter
from .plan import SupervisorPlan, TaskPlan
from .private_network import enter_private_network, why_no_private_network
from .process_tree import (
    adopt_orphans,
    children_of,
    die_with_parent,
    groups_in_sessions,
    in_session,
    reap_child,
    signal_sessions,
    with_variable,
)
from .restart_policy import NEVER, RestartPolicy
from .start_child import FORK, SIGNALS_OF_TERMINALS, STOP_SIGNALS, start

_SIGKILL_TIMEOUT = 10.0  # seconds until a process that SIGKILL does not end (a hung device) is reported
_STOP_SIGNALS = (*STOP_SIGNALS, *SIGNALS_OF_TERMINALS)
_LAUNCHER_DIED = signal.SIGCONT  # it continues a supervisor that was stopped, which no other signal does
_LONGEST_WAIT = 86400.0  # seconds
_SECONDS_BETWEEN_CHECKS = 1.0  # of the fork server, and of a log writer that could not be started


class Supervisor:
    """Run the tasks of a plan until the last of them, and of their descendants, has ended."""

    def __init__(self, control: socket.socket, plan: SupervisorPlan, heard: bytes, launcher: int) -> None:
        self._control = control
        self._launcher = launcher
        self._plan = plan
        self._tasks = {task.name: task for task in plan.tasks}
        self._policy = RestartPolicy(
            lead=plan.lead,
            servers=[task.name for task in plan.tasks if task.serves],
            evaluators=[task.name for task in plan.tasks if task.evaluates],
            alone=[task.name for task in plan.tasks if task.alone],
            restarts=plan.restarts,
            grace=plan.grace,
            linger=plan.linger,
            lost=plan.lost,
            terminate=self._terminate,
        )
        self._running: dict[int, str] = {}  # names by pid
        self._started: set[str] = set()  # the names of all that have been started at least once
        self._fork_server: ForkServer | None = None
        self._killed: set[int] = set()
        self._orphans = 0  # descendants of the tasks that this process adopted and killed
        self._is_sweeping = False
        # The exit codes of tasks that SIGTERM has ended, but maybe not all of their commands, by pid.
        self._shells: dict[int, int] = {}
        self._received = heard
        self._wakeup_reader, ringer = os.pipe()
        for end in (self._wakeup_reader, ringer):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(ringer, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, _LAUNCHER_DIED, *_STOP_SIGNALS):  # the wakeup pipe says which
            is_of_terminal = number in SIGNALS_OF_TERMINALS
            if not (is_of_terminal and signal.getsignal(number) is signal.SIG_IGN):  # as it is under nohup
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
            self._policy.begin_round()
            self._running, self._shells = {}, {}
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

    def _watch(self) -> None:
        """Wait until all tasks of this round have ended, or must be killed."""
        policy = self._policy
        while (self._running or policy.restart_at) and time.monotonic() < policy.kill_at:
            self._wait(min(policy.end_at, policy.kill_at, *policy.restart_at.values()))
            if time.monotonic() >= policy.end_at:
                self._ask()
            if due := policy.take_due():
                self._start(due)

    def _wait_for_next_round(self) -> bool:
        """Wait until the next round is due; return whether there is one."""
        while time.monotonic() < self._policy.next_round < NEVER:
            self._wait(self._policy.next_round)
        return self._policy.next_round < NEVER

    def _wait(self, deadline: float) -> None:
        """Wait for events until this time, and handle them."""
        if not self._log_writer.pid:
            self._log_writer.start(self._control)
            deadline = min(deadline, time.monotonic() + _SECONDS_BETWEEN_CHECKS)
        # The callers ask again: poll takes no more milliseconds than 31 bits count, which are 24 days.
        seconds = min(max(deadline - time.monotonic(), 0), _LONGEST_WAIT)
        ready = dict(self._poll.poll(None if deadline == NEVER else seconds * 1000 + 1))
        signals = os.read(self._wakeup_reader, 4096) if self._wakeup_reader in ready else b""
        if _LAUNCHER_DIED in signals and os.getppid() != self._launcher:
            self._kill()
        elif any(number in signals for number in _STOP_SIGNALS):
            self._policy.stop()
        if self._control.fileno() in ready:
            self._read_commands()
        server = self._fork_server
        if server is not None and server.control.fileno() in ready and not server.read_state():
            self._poll.unregister(server.control)
        self._forward_news()
        self._reap()
        self._log_writer.continue_if_stopped()

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
                    self._policy.stop()
                case "renew":
                    self._policy.renew()
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
        return self._policy.end_at == self._policy.kill_at == NEVER

    def _start(self, names: Iterable[str]) -> bool:
        """Start tasks; end all if one cannot be started, unless it was there before and may start later."""
        for name in names:
            self._policy.note_start(name)
            pid, error = self._start_one(self._tasks[name], self._log_writer.pipe_of(name))
            if error.startswith(FORK) and name in self._started:
                reaction = self._policy.react(name, self._plan.lost)
                self._send_event(lost=name, error=error, **reaction._asdict())
                if self._policy.end_at <= time.monotonic():  # the others end or start again with it
                    return True
                continue
            if error:
                self._send_event(unstartable=name, error=error, program=self._plan.command[0])
                self._kill()
                return False
            self._running[pid] = name
            self._started.add(name)
            self._send_event(started=name, pid=pid)
        if self._fork_server is not None and not (self._policy.allowed or self._policy.restart_at):
            self._fork_server.close()  # to free its memory
        return True

    def _start_one(self, task: TaskPlan, output: int) -> tuple[int, str]:
        if self._fork_server is not None and (started := self._fork_server.start(task, output)):
            return started
        keeps = [] if task.progress is None else [task.progress]
        return start(task.env, task.cores, self._plan.command, output, keeps)

    def _reap(self) -> None:
        """Collect the exit statuses of ended children, including adopted ones, and react to them."""
        exits = self._collect()
        # A shell that SIGTERM ends does not wait for its commands, which save.
        if ended := self._shells.keys() - groups_in_sessions(self._shells):
            exits += self._collect()  # of a command that has ended since
        for pid in ended:
            exits.append((self._shells.pop(pid), pid, self._running.pop(pid)))

        # Of tasks that end at the same time, the lead that is done comes first, since nobody needs the others
        # after it. Then one that a signal ended: it failed first. A lost one may name another.
        def order(end: tuple[int, int, str]) -> tuple[bool, bool, bool]:
            code, _, name = end
            return (name, code) != (self._plan.lead, 0), code >= 0, code == self._plan.lost

        for code, pid, name in sorted(exits, key=order):
            reaction = self._policy.react(name, code)
            is_late = reaction.asked and not self._policy.is_ending  # the lead was done, and needs it no more
            self._send_event(exited=name, pid=pid, code=code, late=is_late, **reaction._asdict())
            if name in self._policy.restart_at:
                self._kill_leftovers(name, pid)

    def _collect(self) -> list[tuple[int, int, str]]:
        """Collect ended children; return the exit code, pid and name of each task among them.

        One that SIGTERM has ended is returned by `_reap`, once all of its commands have ended.
        """
        exits = []
        may_save = self._policy.is_ending and not self._is_sweeping
        while ended := reap_child():
            pid, code, session = ended
            if pid in self._running and code == -signal.SIGTERM and may_save:
                self._shells[pid] = code
            elif pid in self._running:
                # Now: from here on, another process may get the number.
                exits.append((code, pid, self._running.pop(pid)))
            elif pid == self._log_writer.pid:  # another process killed it
                self._log_writer.start(self._control)
            elif self._fork_server is not None and pid == self._fork_server.pid:
                self._fork_server.pid = 0  # another process may get the number
            elif pid not in self._helpers():
                self._orphans += code == -signal.SIGKILL and (self._is_sweeping or pid in self._killed)
                if session in self._shells and code == self._plan.lost:
                    self._shells[session] = code  # all is saved
        return exits

    def _ask(self) -> None:
        """Send SIGTERM to every process of the tasks' sessions, and set the time for SIGKILL."""
        if self._policy.begin_ending() and self._running:
            self._send_event(asked=list(self._running.values()), done=self._policy.is_lead_done)
            self._terminate(self._tasks)

    def _kill(self) -> None:
        self._policy.stop()
        self._policy.begin_ending()
        self._policy.kill_at = 0.0

    def _terminate(self, names: Collection[str]) -> None:
        self._signal(signal.SIGTERM, names)
        self._signal(signal.SIGCONT, names)  # a stopped process does not react otherwise

    def _signal(self, number: signal.Signals, names: Iterable[str]) -> None:
        targets = set(names)
        signal_sessions([pid for pid, name in self._running.items() if name in targets], number)

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
        self._policy.is_ending = True
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
