"""Fork tasks from a process that has loaded TensorFlow once, because loading takes seconds of a core.

The supervisor starts this process, the fork server, with the tasks' own command. There `fork_tasks` loads
the module, and returns only in the tasks. A forked task is like a task that was started by itself: its
parent is the supervisor, and it has its own session, variables, cores and output. Without a fork server,
because the system is not Linux or the fork server has failed, tasks are started one by one.
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

from .plan import TaskPlan, as_bytes
from .process_tree import is_stopped
from .start_child import FORK, SIGNALS_OF_TERMINALS, STOP_SIGNALS, become, start

# The fork server's own variable: the descriptor of its control socket, and its supervisor's pid.
# Padding follows. A task writes its own variables over it, so that /proc/PID/environ shows them.
_VARIABLE = "TFDIST_FORK_SERVER"
_FORK_TIMEOUT = 60.0
_LOAD_TIMEOUT = 600.0  # seconds; a cold network file system may need minutes
_STOPPED_TIMEOUT = 5.0
_NEVER = float("inf")


class ForkServer:
    """The supervisor's side of the fork server.

    Attributes:
        pid: The process, or 0.
        control: The socket to the process; `hear` must be called when there is something to read.
        is_loading: Whether the process may become ready.
    """

    def __init__(self, tasks: Sequence[TaskPlan], command: Sequence[str], output: int) -> None:
        self._common = dict(set.intersection(*(set(task.env.items()) for task in tasks)))
        self._progress = {task.progress for task in tasks if task.progress is not None}
        self.control, its_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        size = max(len(_environment_block(self._own_variables(task))) for task in tasks)
        with its_end:
            value = f"{its_end.fileno()}/{os.getpid()}/".ljust(size, ".")
            # The order is kept: the common variables come first and stay where they are in memory.
            variables = {**self._common, _VARIABLE: value}
            self.pid, error = start(variables, (), command, output, {its_end.fileno(), *self._progress})
        if error:
            self.pid = 0
        self.is_loading, self._is_ready = not error, False
        self._began, self._stopped_since = time.monotonic(), _NEVER

    def why_stuck(self) -> str:
        """Return why nobody should wait any longer until the process has loaded; empty if one should."""
        now = time.monotonic()
        if not self.is_loading:
            return ""
        self._stopped_since = min(self._stopped_since, now) if is_stopped(self.pid) else _NEVER
        if now - self._stopped_since > _STOPPED_TIMEOUT:
            return f"was stopped for {_STOPPED_TIMEOUT:g} s"
        return f"has not loaded within {_LOAD_TIMEOUT:g} s" if now - self._began > _LOAD_TIMEOUT else ""

    def read_state(self) -> bool:
        """Read whether the process is ready, or has ended; return True if it is ready."""
        self.is_loading = self._is_ready = False
        with contextlib.suppress(ConnectionError):
            self._is_ready = bool(self.control.recv(1))
        return self._is_ready

    def start(self, task: TaskPlan, output: int) -> tuple[int, str] | None:
        """Start a task; return its pid and an error text, or None if there is no usable fork server."""
        if self._is_ready and is_stopped(self.pid):
            self.close()
        if not self._is_ready:
            return None
        closes = list(self._progress - {task.progress})
        order = json.dumps({"env": self._own_variables(task), "cores": task.cores, "closes": closes})
        reader, writer = os.pipe()
        with open(reader, "rb", 0) as stream:
            try:
                socket.send_fds(self.control, [order.encode()], [output, writer])
            except OSError:  # the process has ended, or the order is larger than a packet
                self._is_ready = False
            finally:
                os.close(writer)
            # One write is the answer. Its end may not come: somebody may stop the process just after it.
            answer = (stream.read(1 << 16) or b"").decode() if self._is_ready and _has_answer(reader) else ""
        if answer.isdigit():
            return int(answer), ""
        if answer.startswith(FORK):
            return 0, answer
        self.close()
        return (0, answer) if answer else None

    def close(self) -> None:
        """End the process."""
        self.is_loading = self._is_ready = False
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def _own_variables(self, task: TaskPlan) -> dict[str, str]:
        return {name: value for name, value in task.env.items() if name not in self._common}


def fork_tasks(module: str) -> None:
    """In a fork server, load a module and return only in each task; elsewhere return at once."""
    value = os.environ.get(_VARIABLE)
    if value is None:
        return
    fd, supervisor, _ = value.split("/", 2)
    for number in (*STOP_SIGNALS, *SIGNALS_OF_TERMINALS):  # Slurm and systemd send them to all
        signal.signal(number, signal.SIG_IGN)
    with socket.socket(fileno=int(fd)) as control:
        control.set_inheritable(False)
        gc.disable()  # nothing loaded is freed, and collections would take a fifth of the time
        try:
            importlib.import_module(module)
        except ImportError:
            os._exit(1)  # each task runs into the same error and reports it
        gc.freeze()  # otherwise the first collection in each task would copy all that is loaded
        gc.enable()
        control.send(b"+")
        while True:
            order, fds, _, _ = socket.recv_fds(control, 1 << 20, 2)
            if not order:
                os._exit(0)
            if _is_task(json.loads(order), fds, int(supervisor)):
                return
            for descriptor in fds:
                os.close(descriptor)


def _is_task(order: Mapping[str, Any], fds: Sequence[int], supervisor: int) -> bool:
    """Fork a task whose parent is the supervisor; return whether this process is the task."""
    output, answer = fds
    sys.stdout.flush()
    try:
        pid = os.fork()
    except OSError as error:  # the user's limit of processes is reached
        os.write(answer, f"{FORK}{error.strerror}".encode())
        return False
    if pid:
        os.waitpid(pid, 0)
        return False
    try:
        intermediate = os.getpid()
        if os.fork():
            os._exit(0)  # the supervisor adopts its child
        while os.getppid() == intermediate:
            time.sleep(0.0005)
        become(order["cores"], supervisor, output)
    except OSError as error:
        os.write(answer, f"{FORK}{error.strerror}".encode())
        os._exit(127)
    _reset_signals()
    _set_variables(order["env"])
    if "numpy" in sys.modules:  # Python's own generator reseeds itself
        sys.modules["numpy"].random.seed()
    os.write(answer, str(os.getpid()).encode())
    for fd in (output, answer, *order["closes"]):
        os.close(fd)
    return True


def _reset_signals() -> None:
    """Set the signal handlers of a Python that has just started."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)


def _set_variables(own: Mapping[str, str]) -> None:
    """Set the task's own variables, also in the memory that /proc/PID/environ shows."""
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    length = len(f"{_VARIABLE}={os.environ[_VARIABLE]}")
    begin = libc.getenv(_VARIABLE.encode()) - len(f"{_VARIABLE}=")
    del os.environ[_VARIABLE]
    ctypes.memmove(begin, _environment_block(own).ljust(length, b"\0"), length)
    os.environb.update({as_bytes(name): as_bytes(value) for name, value in own.items()})


def _environment_block(variables: Mapping[str, str]) -> bytes:
    """Return variables as they lie in memory."""
    return as_bytes("".join(f"{name}={value}\0" for name, value in variables.items()))


def _has_answer(reader: int) -> bool:
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    return bool(poll.poll(_FORK_TIMEOUT * 1000))
