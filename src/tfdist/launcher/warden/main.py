"""Start the tasks, watch them, start lost ones again, and leave nothing of them behind."""

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

from .network import enter_private_network, why_no_private_network
from .nursery import Nursery
from .patience import Patience
from .processes import adopt_orphans, children_of, die_with_parent, with_variable
from .scribe import Scribe
from .starting import start

__all__ = ["Warden", "main"]

_AFTER_SIGKILL = 10.0  # seconds until a process that SIGKILL does not end (a hung device) is given up
_LAUNCHER_DIED = signal.SIGUSR1
_NEVER = float("inf")
_ALL = ""  # in place of a task's name


class Warden:
    """Start the tasks of a plan and stay until the last of them, and of their descendants, has ended.

    All tasks together live in rounds. One that is lost is started again within the round, if it may be alone;
    otherwise the round is ended, and the next one begins.
    """

    def __init__(self, control: socket.socket, plan: dict[str, Any], heard: bytes) -> None:
        self._control = control
        self._plan = plan
        self._tasks: dict[str, dict[str, Any]] = {task["name"]: task for task in plan["tasks"]}
        self._restarts: int = plan["restarts"]  # that are left
        self._patience: defaultdict[str, Patience] = defaultdict(Patience)
        self._nursery: Nursery | None = None
        self._killed: set[int] = set()
        self._orphans = 0  # descendants of the tasks that came to us and were killed
        self._is_sweeping = False
        self._heard = heard
        self._next_round = _NEVER
        self._begin_round()
        self._bell, ringer = os.pipe()
        for end in (self._bell, ringer):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(ringer, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM, _LAUNCHER_DIED):  # the bell tells which
            signal.signal(number, lambda *_: None)
        self._poll = select.poll()
        self._poll.register(self._control, select.POLLIN)
        self._poll.register(self._bell, select.POLLIN)
        self._scribe = Scribe(plan["tasks"])
        self._poll.register(self._scribe.news, select.POLLIN)

    def run(self) -> None:
        """Start the tasks, in as many rounds as it takes, and return when nothing of them is left."""
        left: list[int] = []
        is_wanted = self._settle_network()
        self._scribe.start(self._control)
        if is_wanted and self._plan["loads_once"] and sys.platform == "linux":
            self._open_nursery()
        while is_wanted:
            self._begin_round()
            if self._settle_nursery() and self._start(self._tasks):
                self._watch()
            left = self._sweep()
            is_wanted = not left and self._is_another_round_due()
        if self._nursery is not None:
            self._nursery.close()
        shutil.rmtree(self._plan["scratch"], ignore_errors=True)  # also where the launcher was killed
        self._scribe.finish()
        self._pass_news_on()
        self._tell(ended=left, orphans=self._orphans)

    def _begin_round(self) -> None:
        self._running: dict[int, str] = {}  # by pid
        self._began: dict[str, float] = {}
        self._revived: set[str] = set()
        self._due: dict[str, float] = {}  # lost tasks, and when each is started again
        self._is_lead_done = self._asked = False
        self._end_at = self._kill_at = self._next_round = _NEVER

    def _watch(self) -> None:
        """Stay until all of this round have ended, or must be killed."""
        while (self._running or self._due) and time.monotonic() < self._kill_at:
            self._turn(min(self._end_at, self._kill_at, *self._due.values()))
            if time.monotonic() >= self._end_at:
                self._ask()
            due = [name for name, when in self._due.items() if when <= time.monotonic()]
            for name in due:
                del self._due[name]
            self._revived.update(due)
            if due:
                self._start(due)

    def _is_another_round_due(self) -> bool:
        """Wait for the time of the next round, if there is to be one."""
        while time.monotonic() < self._next_round < _NEVER:
            self._turn(self._next_round)
        return self._next_round < _NEVER

    def _turn(self, until: float) -> None:
        """Wait until a time for something to happen, and do what it asks for."""
        seconds = until - time.monotonic()
        ready = dict(self._poll.poll(None if until == _NEVER else max(seconds, 0) * 1000 + 1))
        rung = os.read(self._bell, 4096) if self._bell in ready else b""
        if _LAUNCHER_DIED in rung:
            self._kill()
        elif signal.SIGTERM in rung:  # Slurm and systemd send it to every process of a job
            self._end()
        if self._control.fileno() in ready:
            self._listen()
        if self._nursery is not None and self._nursery.control.fileno() in ready:
            self._hear_nursery(self._nursery)
        self._pass_news_on()
        self._reap()

    def _pass_news_on(self) -> None:
        with contextlib.suppress(BlockingIOError):  # there are none
            self._send(os.read(self._scribe.news, 65536))

    def _tell(self, **event: Any) -> None:
        self._send(json.dumps(event).encode() + b"\n")

    def _send(self, lines: bytes) -> None:
        # Nobody listens when the launcher was killed; the tasks are ended all the same.
        with contextlib.suppress(OSError):
            self._control.sendall(lines)

    def _listen(self) -> None:
        try:
            data = self._control.recv(4096)
        except ConnectionError:
            data = b""
        self._heard += data
        self._obey()
        if not data:
            self._kill()

    def _obey(self) -> None:
        *lines, self._heard = self._heard.split(b"\n")
        for line in lines:
            match json.loads(line):
                case "kill":
                    self._kill()
                case "end":
                    self._end()
                case {"kill": name}:
                    self._signal(signal.SIGKILL, [name])

    def _settle_network(self) -> bool:
        """Enter a private network if that is wanted and possible; say whether the tasks may start."""
        if self._plan["isolate"] == "never":
            return True
        reason = why_no_private_network()
        if not reason:
            enter_private_network()
        required = self._plan["isolate"] == "always"
        self._tell(network=reason, required=required)
        return not reason or not required

    def _open_nursery(self) -> None:
        # What loading prints, which each task would print, is printed by the lead.
        output = self._scribe.pipe_of(self._plan["lead"])
        self._nursery = Nursery(self._plan["tasks"], self._plan["command"], output)
        self._poll.register(self._nursery.control, select.POLLIN)

    def _hear_nursery(self, nursery: Nursery) -> None:
        if not nursery.hear():
            self._poll.unregister(nursery.control)

    def _settle_nursery(self) -> bool:
        """Wait until the nursery is of use, or is not going to be; say whether the tasks may start."""
        self._obey()
        while self._nursery is not None and self._nursery.is_loading and self._is_going_on():
            self._turn(_NEVER)
        return self._is_going_on()

    def _is_going_on(self) -> bool:
        return self._end_at == self._kill_at == _NEVER

    def _start(self, names: Iterable[str]) -> bool:
        """Start tasks; where one cannot be, end all."""
        self._began.setdefault(_ALL, time.monotonic())
        for name in names:
            pid, error = self._start_one(self._tasks[name], self._scribe.pipe_of(name))
            if error:
                self._tell(unstartable=name, error=error, program=self._plan["command"][0])
                self._kill()
                return False
            self._running[pid] = name
            self._began[name] = time.monotonic()
            self._tell(started=name, pid=pid)
        if self._nursery is not None and not (self._restarts or self._due):
            self._nursery.close()  # which has memory of its own
        return True

    def _start_one(self, task: dict[str, Any], output: int) -> tuple[int, str]:
        if self._nursery is not None and (started := self._nursery.start(task, output)):
            return started
        keeps = [] if task["progress"] is None else [task["progress"]]
        return start(task["env"], task["cores"], self._plan["command"], output, keeps)

    def _reap(self) -> None:
        """Collect what has ended, the adopted too, and see what follows from it."""
        exits = []
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                pid, code = found[0], os.waitstatus_to_exitcode(found[1])
                if pid in self._running:
                    # At once, for from now on the number may be another's.
                    exits.append((code, pid, self._running.pop(pid)))
                elif pid == self._scribe.pid:  # somebody killed it
                    self._scribe.start(self._control)
                elif pid not in self._helpers():
                    self._orphans += code == -signal.SIGKILL and (self._is_sweeping or pid in self._killed)
        # Of those that end in one instant, one ended by a signal fell first; 138 says that another is lost.
        for code, pid, name in sorted(exits, key=lambda each: (each[0] >= 0, each[0] == 138)):
            self._tell(exited=name, pid=pid, code=code, **self._follow(name, code))
            if name in self._due:
                self._clear_after(name, pid)

    def _follow(self, name: str, code: int) -> dict[str, Any]:
        """Do what a task's end asks for, and give what there is to tell of it."""
        is_lost = code < 0 or code == 138
        if self._asked or self._next_round < _NEVER:
            return {"asked": self._asked, "again": self._next_round < _NEVER}
        if code == 0:
            if name == self._plan["lead"]:
                self._let_end()
        elif is_lost and self._is_lead_done and self._tasks[name]["serves"]:
            return {"asked": True, "again": False}  # there was nobody left whom it could serve
        elif is_lost and self._restarts:
            return {"asked": False, "again": True, **self._start_again(name)}
        else:
            self._end()
        return {"asked": False, "again": False}

    def _start_again(self, name: str) -> dict[str, Any]:
        """Set the time at which a lost task is started again, or all with it; say which, and the pause."""
        self._restarts -= 1
        alone, now = self._tasks[name]["alone"], time.monotonic()
        what = name if alone else _ALL
        pause = self._patience[what].pause_after(now - self._began[what])
        if alone:
            self._due[name] = now + pause
        else:
            self._next_round = now + pause
            self._end_at = now
        return {"alone": alone, "pause": pause}

    def _let_end(self) -> None:
        """Give the others their time to end after the lead."""
        self._is_lead_done = True
        self._end_at = min(self._end_at, time.monotonic() + self._plan["linger"])
        self._due = {name: when for name, when in self._due.items() if not self._tasks[name]["serves"]}
        # A server that was started again just now may not have met its chief, and would wait for it.
        self._terminate(name for name in self._revived if self._tasks[name]["serves"])

    def _end(self) -> None:
        """Have all tasks ended, by SIGTERM first, and start none again."""
        self._restarts, self._next_round = 0, _NEVER
        self._end_at = min(self._end_at, time.monotonic())

    def _ask(self) -> None:
        """Send SIGTERM to every task's process group, and set the time for SIGKILL."""
        self._end_at = _NEVER
        self._due.clear()
        if self._asked:
            return
        self._asked = True
        self._kill_at = min(self._kill_at, time.monotonic() + self._plan["grace"])
        if self._running:
            self._tell(asked=list(self._running.values()), done=self._is_lead_done)
            self._terminate(self._tasks)

    def _kill(self) -> None:
        self._restarts, self._next_round = 0, _NEVER
        self._asked = True
        self._kill_at = 0.0

    def _terminate(self, names: Iterable[str]) -> None:
        names = list(names)
        self._signal(signal.SIGTERM, names)
        self._signal(signal.SIGCONT, names)  # or one that is stopped would take no notice

    def _signal(self, number: signal.Signals, names: Iterable[str]) -> None:
        wanted = set(names)
        for pid in (pid for pid, name in self._running.items() if name in wanted):
            # Its own group has that number until it is reaped. EPERM: all of it has changed to another user.
            with contextlib.suppress(PermissionError):
                os.killpg(pid, number)

    def _clear_after(self, name: str, pid: int) -> None:
        """Kill what a lost task has left: it may hold the memory, or the port, that the next one needs."""
        if sys.platform == "linux":
            self._kill_all(lambda: with_variable(self._tasks[name]["mark"]))
        else:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)

    def _sweep(self) -> list[int]:
        """Kill and collect whatever is left, until there is nothing that could start anything more."""
        self._asked = True
        self._reap()
        self._is_sweeping = True
        self._signal(signal.SIGKILL, self._tasks)
        left = self._kill_all(self._left)
        self._is_sweeping = False
        return left

    def _left(self) -> list[int]:
        self._reap()
        # Without PR_SET_CHILD_SUBREAPER, what a task leaves goes to init, out of reach.
        left = children_of(os.getpid()) if sys.platform == "linux" else list(self._running)
        return [pid for pid in left if pid not in self._helpers()]

    def _helpers(self) -> set[int]:
        return {self._scribe.pid} if self._nursery is None else {self._scribe.pid, self._nursery.pid}

    def _kill_all(self, find: Callable[[], list[int]]) -> list[int]:
        """Kill processes until none is found; give those that do not end."""
        give_up = time.monotonic() + _AFTER_SIGKILL
        while (left := find()) and time.monotonic() < give_up:
            for pid in left:
                self._killed.add(pid)
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.005)
        return left


def main(control_fd: int, launcher: int) -> None:
    """Be the warden of the launcher at the other end of a socket."""
    # Besides the end of the stream, which a forked copy of the launcher would keep open.
    die_with_parent(launcher, _LAUNCHER_DIED)
    with socket.socket(fileno=control_fd) as control:
        control.set_inheritable(False)
        heard = b""
        while b"\n" not in heard:
            if not (data := control.recv(65536)):
                return  # the launcher died before it had said all
            heard += data
        line, _, heard = heard.partition(b"\n")
        plan = json.loads(line)
        for task in plan["tasks"]:
            for fd in (task["log"], task["progress"]):
                if fd is not None:
                    os.set_inheritable(fd, False)
        adopt_orphans()
        Warden(control, plan, heard).run()
