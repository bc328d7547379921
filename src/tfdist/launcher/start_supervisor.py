"""Start the supervisor of a launch, which is a process of its own."""

import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tfdist.errors import ConfigError, TaskLost
from tfdist.launcher.supervisor.plan import SupervisorPlan

_SECONDS_TO_END = 60.0  # when all tasks have been told to end at once

# Runs with the standard library first on the path, and this package's folder last.
_SUPERVISOR_PROGRAM = """
import sys
sys.path.append(sys.argv[1])
from supervisor.supervisor import main
main(int(sys.argv[2]), int(sys.argv[3]))
"""


class SupervisorProcess:
    """The supervisor of a launch, and the connection to it.

    Attributes:
        control: The socket that connects it to this process.
        pid: The number of its process.
        is_gone: Whether it has closed the connection.
    """

    def __init__(self, control: socket.socket, pid: int) -> None:
        self.control, self.pid, self.is_gone = control, pid, False
        self._received = b""
        self._has_plan = False
        self._unsent: list[object] = []

    def begin(self, plan: SupervisorPlan) -> None:
        """Send it the plan, on which it starts the tasks."""
        with contextlib.suppress(ConnectionError):  # it was killed, which LaunchMonitor.follow reports
            self.control.sendall(plan.to_json())
        self._has_plan = True
        for what in self._unsent:
            self.send(what)

    def send(self, what: object) -> None:
        """Tell it what to do, once it has the plan: a signal handler may come before that."""
        if not self._has_plan:
            self._unsent.append(what)
            return
        with contextlib.suppress(OSError):  # it has already ended
            self.control.send(json.dumps(what).encode() + b"\n")

    def received(self) -> Iterator[dict[str, Any]]:
        """Yield the events that it has sent."""
        try:
            data = self.control.recv(65536)
        except ConnectionError:
            data = b""
        self.is_gone = not data
        *lines, self._received = (self._received + data).split(b"\n")
        yield from map(json.loads, lines)

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        # The number is not used again: only this process can reap the supervisor, and does so at the end.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)


@contextlib.contextmanager
def started_supervisor(descriptors: Sequence[int]) -> Iterator[SupervisorProcess]:
    """Start the supervisor, which waits for its plan; after the block it ends all tasks."""
    control, its_end = socket.socketpair()
    with control:
        with its_end:
            arguments = Path(__file__).parent, its_end.fileno(), os.getpid()
            try:
                process = subprocess.Popen(
                    # -I -S: the user's variables and site-packages do not affect it.
                    [sys.executable, "-I", "-S", "-c", _SUPERVISOR_PROGRAM, *map(str, arguments)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[its_end.fileno(), *descriptors],
                    start_new_session=True,  # Ctrl-C on the terminal reaches only the launcher
                )
            except OSError as error:
                problem = f"cannot start its supervisor: {error.strerror}"
                if error.errno not in (errno.EAGAIN, errno.ENOMEM):
                    raise ConfigError("launcher", problem) from error
                raise TaskLost(
                    "launcher", problem, remedy="See the limits of processes (ulimit -a)"
                ) from error
        try:
            yield SupervisorProcess(control, process.pid)
        finally:
            control.close()
            _wait(process)


def _wait(process: "subprocess.Popen[bytes]") -> None:
    """Wait for the end of the supervisor, also if somebody stops it meanwhile."""
    deadline = time.monotonic() + _SECONDS_TO_END
    while process.poll() is None:
        process.send_signal(signal.SIGCONT)
        if time.monotonic() > deadline:
            process.kill()  # the kernel kills the tasks then
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1)
