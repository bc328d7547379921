"""Own the tasks of a local cluster: start them, watch them, and leave nothing of them behind.

The launcher runs this file by its path, with the standard library alone, as a process between itself and the
tasks. It takes a process of its own, because only that

- outlives a SIGKILL of the launcher, and can end the tasks then;
- may adopt what the tasks leave behind (PR_SET_CHILD_SUBREAPER) and end it, without mistaking other children
  of the user's process for it;
- has one thread, without which the kernel lets nobody into a user namespace, and fork is not safe.

They talk over a socket, one JSON value a line. The launcher sends the plan, then `"end"` (SIGTERM, and
SIGKILL after the grace), `"kill"`, or `{"kill": "worker:1"}` for one task; the end of the stream means that
it is dead, and counts as `"kill"`. The warden tells what happens, in its order: `network`, `started` or
`unstartable`, `exited`, `asked`, `ended`.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any

__all__ = ["children_of", "enter_private_network", "why_no_private_network", "with_variable"]

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_CLONE_NEWUSER, _CLONE_NEWNET = 0x1000_0000, 0x4000_0000
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1
_AFTER_SIGKILL = 10.0  # seconds until a process that SIGKILL does not end (a hung device) is given up


class Warden:
    """Start the tasks of a plan and stay until the last of them, and of their descendants, has ended."""

    def __init__(self, control: socket.socket, plan: dict[str, Any], heard: bytes) -> None:
        self._control = control
        self._plan = plan
        self._grace: float = plan["grace"]
        self._running: dict[int, str] = {}  # by pid
        self._orphans = 0  # descendants of the tasks that came to us and were killed
        self._asked = False
        self._end_at = self._kill_at = float("inf")
        self._heard = heard
        self._bell, ringer = os.pipe()
        for end in (self._bell, ringer):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(ringer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self._kill())

    def run(self) -> None:
        """Start the tasks, and return when nothing of them is left."""
        if not self._settle_network() or not self._start_all():
            return self._sweep()
        self._obey()
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._bell, select.POLLIN)
        while self._running and time.monotonic() < self._kill_at:
            until = min(self._end_at, self._kill_at) - time.monotonic()
            ready = dict(poll.poll(None if until == float("inf") else max(until, 0) * 1000 + 1))
            if self._bell in ready:
                os.read(self._bell, 4096)
            if self._control.fileno() in ready:
                self._listen()
            self._reap()
            if time.monotonic() >= self._end_at and self._running:
                self._ask()
        return self._sweep()

    def _tell(self, **event: Any) -> None:
        # Nobody listens when the launcher was killed; the tasks are ended all the same.
        with contextlib.suppress(OSError):
            self._control.sendall(json.dumps(event).encode() + b"\n")

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
                    self._end_at = min(self._end_at, time.monotonic())
                case {"kill": name}:
                    self._signal(signal.SIGKILL, only=name)

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

    def _start_all(self) -> bool:
        for task in self._plan["tasks"]:
            pid, error = _start(task, [_bytes(word) for word in self._plan["command"]])
            if error:
                self._tell(unstartable=task["name"], error=error, program=self._plan["command"][0])
                self._kill()
                return False
            self._running[pid] = task["name"]
            self._tell(started=task["name"], pid=pid)
        for fd in _descriptors(self._plan):
            os.close(fd)
        return True

    def _reap(self) -> None:
        """Collect what has ended, the adopted too; a failure or the lead's success makes an end of all."""
        exits = []
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                exits.append((os.waitstatus_to_exitcode(found[1]), found[0]))
        # Of those that end in one instant, one ended by a signal fell first; 138 says that another is lost.
        for code, pid in sorted(exits, key=lambda each: (each[0] >= 0, each[0] == 138)):
            name = self._running.pop(pid, None)
            if name is None:
                self._orphans += code == -signal.SIGKILL
                continue
            self._tell(exited=name, pid=pid, code=code, asked=self._asked)
            if code:
                self._end_at = min(self._end_at, time.monotonic())
            elif name == self._plan["lead"]:
                self._end_at = min(self._end_at, time.monotonic() + self._grace)

    def _ask(self) -> None:
        """Send SIGTERM to every task's process group, and set the time for SIGKILL."""
        self._end_at = float("inf")
        if self._asked:
            return
        self._asked = True
        self._kill_at = min(self._kill_at, time.monotonic() + self._grace)
        self._tell(asked=list(self._running.values()))
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)  # or one that is stopped would take no notice

    def _kill(self) -> None:
        self._asked = True
        self._kill_at = 0.0

    def _signal(self, number: signal.Signals, only: str | None = None) -> None:
        for pid, name in self._running.items():
            if only not in (None, name):
                continue
            # Its own group has that number until it is reaped. EPERM: all of it has changed to another user.
            with contextlib.suppress(PermissionError):
                os.killpg(pid, number)

    def _sweep(self) -> None:
        """Kill and collect whatever is left, until there is nothing that could start anything more."""
        self._asked = True
        give_up = time.monotonic() + _AFTER_SIGKILL
        self._reap()
        self._orphans = 0
        self._signal(signal.SIGKILL)
        while left := self._left():
            for pid in left:
                with contextlib.suppress(PermissionError):
                    os.kill(pid, signal.SIGKILL)
            self._reap()
            if time.monotonic() > give_up:
                break
            time.sleep(0.005)
        self._tell(ended=left, orphans=self._orphans)

    def _left(self) -> list[int]:
        # Without PR_SET_CHILD_SUBREAPER, what a task leaves goes to init, out of reach.
        return children_of(os.getpid()) if sys.platform == "linux" else list(self._running)


def _start(task: dict[str, Any], command: list[bytes]) -> tuple[int, str]:
    """Start one task; give its pid, and why it could not be started if so."""
    error_reader, error_writer = os.pipe()
    warden = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:  # the user's limit of processes
        return 0, f"fork: {error.strerror}"
    if pid == 0:
        try:
            _become(task, warden)
            os.execvpe(command[0], command, {_bytes(k): _bytes(v) for k, v in task["env"].items()})  # noqa: S606
        except (OSError, ValueError) as error:
            os.write(error_writer, str(getattr(error, "strerror", None) or error).encode())
        finally:
            os._exit(127)
    os.close(error_writer)
    with open(error_reader, "rb") as stream:  # ends when exec closes the other side
        reason = stream.read().decode()
    if reason:
        os.waitpid(pid, 0)
    return pid, reason


def _become(task: dict[str, Any], warden: int) -> None:
    """Make the forked child what the task needs: a session of its own that dies with the warden."""
    os.setsid()
    die_with_parent(warden)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)  # Python ignores the first two, a shell's & or nohup the others
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    if task["cores"]:
        os.sched_setaffinity(0, task["cores"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(task["log"], 1)
    os.dup2(task["log"], 2)
    if task["progress"] is not None:
        os.set_inheritable(task["progress"], True)


def die_with_parent(parent: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when its parent ends, also if it has ended already."""
    if sys.platform != "linux":
        return
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it ended before the line above, and the kernel will send nothing
        os.kill(os.getpid(), number)


def children_of(parent: int) -> list[int]:
    """List the children of a process, zombies too."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208  # names are wanted, not paths
        with contextlib.suppress(OSError):  # ended meanwhile
            # pid (name) state ppid …, where the name may hold blanks and brackets
            stat = Path("/proc", pid, "stat").read_text("ascii", "replace")
            if int(stat.rpartition(")")[2].split()[1]) == parent:
                found.append(int(pid))
    return found


def with_variable(assignment: str) -> list[int]:
    """List the processes that were started with a variable, zombies aside, as far as we may see it."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208  # names are wanted, not paths
        with contextlib.suppress(OSError):  # ended meanwhile, or somebody else's
            if assignment.encode() in Path("/proc", pid, "environ").read_bytes().split(b"\0"):
                found.append(int(pid))
    return found


def why_no_private_network() -> str:
    """Try in a child to enter a private network; give the reason why that cannot be, or nothing."""
    if sys.platform != "linux":
        return "only Linux has private networks"
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            enter_private_network()
            os._exit(0)
        except OSError as error:
            os.write(writer, f"{error.filename or 'socket'}: {error.strerror}".encode())
        finally:
            os._exit(1)
    os.close(writer)
    with open(reader, "rb") as stream:
        reason = stream.read().decode()
    status = os.waitpid(pid, 0)[1]
    return reason or ("the attempt failed" if status else "")


def enter_private_network() -> None:
    """Move this process, and those that it will start, to a network that has a loopback and nothing else.

    Root moves as it is. Others must enter a user namespace first, in which they keep their own number, so
    that files are read and written as before. Root enters none, even where it may not move without: only its
    own number would exist in there, and it would lose its access to the files of everybody else.
    """
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0:
        _unshare(_CLONE_NEWNET)
    else:
        _unshare(_CLONE_NEWUSER | _CLONE_NEWNET)
        # A user without privileges may map its group only after giving up setgroups().
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        asked = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, asked))[1]
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname(), timeout=1).close()


def _unshare(flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(ctypes.c_int(flags)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "unshare")


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(ctypes.c_int(option), *(ctypes.c_ulong(each) for each in (value, 0, 0, 0))):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "prctl")


def _bytes(text: str) -> bytes:
    return text.encode("latin-1")  # a character stands for a byte: names of files may be in any encoding


def _descriptors(plan: dict[str, Any]) -> list[int]:
    return [task[key] for task in plan["tasks"] for key in ("log", "progress") if task[key] is not None]


def main(control_fd: int, launcher: int) -> None:
    """Be the warden of the launcher at the other end of a socket."""
    # Besides the end of the stream, which a forked copy of the launcher would keep open.
    die_with_parent(launcher, signal.SIGTERM)
    with socket.socket(fileno=control_fd) as control:
        control.set_inheritable(False)
        heard = b""
        while b"\n" not in heard:
            if not (data := control.recv(65536)):
                return  # the launcher died before it had said all
            heard += data
        line, _, heard = heard.partition(b"\n")
        plan = json.loads(line)
        for fd in _descriptors(plan):
            os.set_inheritable(fd, False)
        if sys.platform == "linux":
            _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        Warden(control, plan, heard).run()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
