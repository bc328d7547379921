"""Write what the tasks print into their logs, even if the disk fails.

A task that wrote to its own log would fail with the disk. Instead it prints to a pipe. The log writer, a
child of the supervisor, copies from the pipe to the log and drops what does not fit. It is a separate
process so that a disk that does not answer cannot block the supervisor.
"""

import contextlib
import json
import os
import select
import signal
import socket
import time
from collections.abc import Sequence
from typing import Any

from .plan import TaskPlan
from .process_tree import is_stopped

_MAX_PIPE_BYTES = 1 << 20
_LARGE_BYTES = 1 << 30  # the launcher prints a warning
# A log that is already long leaves space for other files, above all checkpoints: a twentieth of the disk, and
# at most 1 GiB.
_LONG_BYTES, _RESERVE_FRACTION, _RESERVE_BYTES = 64 << 20, 20, 1 << 30
_SECONDS_TO_FINISH = 10.0


class LogWriter:
    """The pipes that tasks print to, and the process that copies from the pipes to the logs.

    Attributes:
        pid: The process, or 0.
        news: The reading end of a pipe with events for the launcher, one JSON object per line.
    """

    def __init__(self, tasks: Sequence[TaskPlan]) -> None:
        self._logs: dict[int, _Log] = {}  # by the reading end of the pipe
        self._writers: dict[str, int] = {}
        for task in tasks:
            reader, self._writers[task.name] = os.pipe()
            os.set_blocking(reader, False)
            self._logs[reader] = _Log(task.name, task.log)
        self.news, self._reporter = os.pipe()
        for end in (self.news, self._reporter):
            os.set_blocking(end, False)
        self._orders, self._end_of_orders = os.pipe()
        self.pid = 0

    def pipe_of(self, name: str) -> int:
        """Return the descriptor that a task prints to."""
        return self._writers[name]

    def start(self, control: socket.socket) -> None:
        """Start the process, or start it again after its death: the pipes have kept their contents.

        If the user's limit of processes is reached, there is none until the next call.
        """
        self.pid = 0
        try:
            self.pid = os.fork()
        except OSError:
            return
        if self.pid:
            return
        try:
            signal.set_wakeup_fd(-1)
            control.close()  # otherwise the launcher would not notice the supervisor's end
            os.close(self._end_of_orders)
            self._copy_all()
        finally:
            os._exit(0)

    def continue_if_stopped(self) -> None:
        """Continue the process if somebody has stopped it: what prints much would wait for it without end."""
        if self.pid and is_stopped(self.pid):
            os.kill(self.pid, signal.SIGCONT)

    def finish(self) -> None:
        """Wait until the process has written what is in the pipes, and has ended."""
        os.close(self._end_of_orders)
        if not self.pid:
            return
        deadline = time.monotonic() + _SECONDS_TO_FINISH
        while not os.waitpid(self.pid, os.WNOHANG)[0]:
            if time.monotonic() > deadline:  # the disk does not answer
                os.kill(self.pid, signal.SIGKILL)
                return
            self.continue_if_stopped()
            time.sleep(0.001)

    def _copy_all(self) -> None:
        """Copy from the pipes to the logs until the order pipe closes, and then copy the rest."""
        poll = select.poll()
        for fd in (self._orders, *self._logs):
            poll.register(fd, select.POLLIN)
        is_over = False
        while not is_over:
            ready = {fd for fd, _ in poll.poll()}
            is_over = self._orders in ready
            for fd in self._logs if is_over else ready:
                self._copy(fd)

    def _copy(self, fd: int) -> None:
        with contextlib.suppress(BlockingIOError):  # the pipe is empty, or nobody has read the news for long
            data = os.read(fd, _MAX_PIPE_BYTES)
            if data and (news := self._logs[fd].add(data)):
                os.write(self._reporter, json.dumps(news).encode() + b"\n")


class _Log:
    """Write to one log file; if that fails, count the lost bytes, and later write the count into the file."""

    def __init__(self, name: str, fd: int) -> None:
        self._name, self._fd = name, fd
        self._large = _LARGE_BYTES
        while os.fstat(fd).st_size >= self._large:
            self._large *= 2
        self._lost = 0

    def add(self, data: bytes) -> dict[str, Any] | None:
        """Write some text, if possible; return an event for the launcher, or None."""
        was_writable = not self._lost
        gap = b"" if was_writable else f"\n[{self._lost} bytes are lost here]\n".encode()
        left, reason = self._write(gap + data)
        if left:
            self._lost += min(left, len(data))
            return {"unwritable": self._name, "reason": reason} if was_writable else None
        self._lost = 0
        size = os.fstat(self._fd).st_size
        if size < self._large:
            return None
        self._large *= 2
        return {"large": self._name, "bytes": size}

    def _write(self, data: bytes) -> tuple[int, str]:
        """Write as much as possible; return how many bytes are left, and why."""
        try:
            if os.fstat(self._fd).st_size > _LONG_BYTES and _is_almost_full(self._fd):
                return len(data), "the disk is almost full"
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError as error:
            return len(data), str(error.strerror)
        return 0, ""


def _is_almost_full(fd: int) -> bool:
    disk = os.fstatvfs(fd)
    return disk.f_bavail < min(disk.f_blocks // _RESERVE_FRACTION, _RESERVE_BYTES // disk.f_frsize)
