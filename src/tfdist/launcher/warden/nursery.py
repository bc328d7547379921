"""Fork tasks from a process that has loaded what all of them need: TensorFlow alone takes seconds of a core.

The warden starts that process, the nursery, with the tasks' own command. There `raise_tasks` loads, and goes
on in the tasks alone. They cannot be told from tasks that were started one by one: each has the warden for
its parent, and a session, variables, cores and output of its own. Where there is no nursery, because the
system is not Linux or something in it has failed, tasks are started one by one.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from .starting import as_bytes, become, start

__all__ = ["Nursery", "raise_tasks"]

# Holds what the nursery has to know, and then room: it is the last of the variables, and a task's own ones
# are written over it, so that /proc/PID/environ shows them.
_VARIABLE = "TFDIST_NURSERY"
_SECONDS_TO_FORK = 60.0


class Nursery:
    """Be the warden's side of it.

    Attributes:
        pid: The process, or 0.
        control: What it can be heard by, and is to be heard when there is something to read.
        is_loading: Whether it may be of use soon.
    """

    def __init__(self, tasks: Sequence[Mapping[str, Any]], command: Sequence[str], output: int) -> None:
        self._common = dict(set.intersection(*(set(task["env"].items()) for task in tasks)))
        self._progress = {task["progress"] for task in tasks} - {None}
        self.control, its_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        room = max(len(_block(self._own(task))) for task in tasks)
        with its_end:
            value = f"{its_end.fileno()}/{os.getpid()}/".ljust(room, ".")
            # The order is kept: what is the same for all comes first, and stays where it is in memory.
            variables = {**self._common, _VARIABLE: value}
            self.pid, error = start(variables, (), command, output, {its_end.fileno(), *self._progress})
        if error:
            self.pid = 0
        self.is_loading, self._is_ready = not error, False

    def hear(self) -> bool:
        """Learn that it is ready, or by the end of the stream that it has ended; say which."""
        self.is_loading = self._is_ready = False
        with contextlib.suppress(ConnectionError):
            self._is_ready = bool(self.control.recv(1))
        return self._is_ready

    def start(self, task: Mapping[str, Any], output: int) -> tuple[int, str] | None:
        """Start a task; give its pid, and why it could not be started if so; or nothing, being of no use."""
        if not self._is_ready:
            return None
        closes = list(self._progress - {task["progress"]})
        order = json.dumps({"env": self._own(task), "cores": task["cores"], "closes": closes})
        reader, writer = os.pipe()
        with open(reader, "rb") as stream:
            try:
                socket.send_fds(self.control, [order.encode()], [output, writer])
            except OSError:  # it has ended, or there is more to say than a packet takes
                self._is_ready = False
            finally:
                os.close(writer)
            answer = stream.read().decode() if self._is_ready and _has_answer(reader) else ""
        if answer.isdigit():
            return int(answer), ""
        self.close()
        return (0, answer) if answer else None

    def close(self) -> None:
        """End it."""
        self.is_loading = self._is_ready = False
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def _own(self, task: Mapping[str, Any]) -> dict[str, str]:
        return {name: value for name, value in task["env"].items() if name not in self._common}


def raise_tasks(module: str) -> None:
    """Return at once where this is no nursery; where it is, load a module, and return in each task alone."""
    value = os.environ.get(_VARIABLE)
    if value is None:
        return
    fd, warden, _ = value.split("/", 2)
    for number in (
        signal.SIGTERM,
        signal.SIGINT,
        signal.SIGHUP,
    ):  # Slurm sends them to all; the warden ends it
        signal.signal(number, signal.SIG_IGN)
    with socket.socket(fileno=int(fd)) as control:
        control.set_inheritable(False)
        gc.disable()  # what is loaded stays, and to look through it again and again takes a fifth of the time
        try:
            importlib.import_module(module)
        except ImportError:
            os._exit(1)  # each task will find that out by itself, and say it
        gc.freeze()  # or the first collection in each task would copy all that is loaded
        gc.enable()
        control.send(b"+")
        while True:
            order, fds, _, _ = socket.recv_fds(control, 1 << 20, 2)
            if not order:
                os._exit(0)
            if _is_task(json.loads(order), fds, int(warden)):
                return
            for each in fds:
                os.close(each)


def _is_task(order: Mapping[str, Any], fds: Sequence[int], warden: int) -> bool:
    """Fork a task whose parent is the warden; say whether this is it."""
    output, answer = fds
    sys.stdout.flush()
    try:
        pid = os.fork()
    except OSError as error:  # the user's limit of processes
        os.write(answer, f"fork: {error.strerror}".encode())
        return False
    if pid:
        os.waitpid(pid, 0)
        return False
    try:
        between = os.getpid()
        if os.fork():
            os._exit(0)  # its child goes to the warden, which adopts orphans
        while os.getppid() == between:
            time.sleep(0.0005)
        become(order["cores"], warden, output)
    except OSError as error:
        os.write(answer, f"fork: {error.strerror}".encode())
        os._exit(127)
    _take_signals()
    _take_variables(order["env"])
    if "numpy" in sys.modules:  # Python's own generator does this by itself
        sys.modules["numpy"].random.seed()
    os.write(answer, str(os.getpid()).encode())
    for fd in (output, answer, *order["closes"]):
        os.close(fd)
    return True


def _take_signals() -> None:
    """Have signals do what they do in a Python that has just begun."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)


def _take_variables(own: Mapping[str, str]) -> None:
    """Give this process its own variables, also in the eyes of others."""
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    length = len(f"{_VARIABLE}={os.environ[_VARIABLE]}")
    begin = libc.getenv(_VARIABLE.encode()) - len(f"{_VARIABLE}=")
    del os.environ[_VARIABLE]
    ctypes.memmove(begin, _block(own).ljust(length, b"\0"), length)
    os.environb.update({as_bytes(name): as_bytes(value) for name, value in own.items()})


def _block(variables: Mapping[str, str]) -> bytes:
    """Give variables as they lie in memory."""
    return as_bytes("".join(f"{name}={value}\0" for name, value in variables.items()))


def _has_answer(reader: int) -> bool:
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    return bool(poll.poll(_SECONDS_TO_FORK * 1000))
