"""Write what the tasks print into their logs, whatever becomes of the disk.

A task that wrote to its log itself would fail with the disk. Through a pipe it prints on, and the scribe, a
child of the warden, drops what there is no room for. It is a process of its own so that a disk that does not
answer keeps the warden from nothing.
"""

import contextlib
import json
import os
import select
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["Scribe"]

_ALL_THAT_A_PIPE_HOLDS = 1 << 20
_LARGE = 1 << 30  # people are told
# What a log that is long already leaves to others, of which a checkpoint is the most needed: the twentieth
# part of the disk, and at most so many bytes.
_LONG, _RESERVE_PART, _RESERVE_BYTES = 64 << 20, 20, 1 << 30
_SECONDS_TO_FINISH = 10.0


class Scribe:
    """Keep the pipes that tasks print to, and the process that copies from there to the logs.

    Attributes:
        pid: That process.
        news: The end of a pipe to read from what people should know, one JSON object a line.
    """

    def __init__(self, tasks: Sequence[Mapping[str, Any]]) -> None:
        self._logs: dict[int, _Log] = {}  # by the end of the pipe to read from
        self._writers: dict[str, int] = {}
        for task in tasks:
            reader, self._writers[task["name"]] = os.pipe()
            os.set_blocking(reader, False)
            self._logs[reader] = _Log(task["name"], task["log"])
        self.news, self._reporter = os.pipe()
        for end in (self.news, self._reporter):
            os.set_blocking(end, False)
        self._orders, self._end_of_orders = os.pipe()
        self.pid = 0

    def pipe_of(self, name: str) -> int:
        """Give what a task is to print to."""
        return self._writers[name]

    def start(self, control: socket.socket) -> None:
        """Start the process; again where it is dead: the pipes have kept what was in them."""
        self.pid = os.fork()
        if self.pid:
            return
        try:
            signal.set_wakeup_fd(-1)
            control.close()  # or the launcher would not learn of the warden's end
            os.close(self._end_of_orders)
            self._copy_all()
        finally:
            os._exit(0)

    def finish(self) -> None:
        """Let the process write what is in the pipes, and end."""
        os.close(self._end_of_orders)
        give_up = time.monotonic() + _SECONDS_TO_FINISH
        while not os.waitpid(self.pid, os.WNOHANG)[0]:
            if time.monotonic() > give_up:  # the disk does not answer
                os.kill(self.pid, signal.SIGKILL)
                return
            time.sleep(0.001)

    def _copy_all(self) -> None:
        """Copy from the pipes to the logs until the orders end, and then what is left."""
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
        with contextlib.suppress(BlockingIOError):  # nothing in it, or nobody has read the news for long
            data = os.read(fd, _ALL_THAT_A_PIPE_HOLDS)
            if data and (news := self._logs[fd].add(data)):
                os.write(self._reporter, json.dumps(news).encode() + b"\n")


class _Log:
    """Add to one log file; where that cannot be, count what is lost, and note there how much it was."""

    def __init__(self, name: str, fd: int) -> None:
        self._name, self._fd = name, fd
        self._large = _LARGE
        while os.fstat(fd).st_size >= self._large:
            self._large *= 2
        self._lost = 0

    def add(self, data: bytes) -> dict[str, Any] | None:
        """Write some text, if possible; give what people should know."""
        was_well = not self._lost
        gap = b"" if was_well else f"\n[{self._lost} bytes are lost here]\n".encode()
        left, reason = self._write(gap + data)
        if left:
            self._lost += min(left, len(data))
            return {"unwritable": self._name, "reason": reason} if was_well else None
        self._lost = 0
        size = os.fstat(self._fd).st_size
        if size < self._large:
            return None
        self._large *= 2
        return {"large": self._name, "bytes": size}

    def _write(self, data: bytes) -> tuple[int, str]:
        """Write what can be; give how many bytes are left, and why."""
        try:
            if os.fstat(self._fd).st_size > _LONG and _is_all_but_full(self._fd):
                return len(data), "the rest of the disk is for others"
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError as error:
            return len(data), str(error.strerror)
        return 0, ""


def _is_all_but_full(fd: int) -> bool:
    disk = os.fstatvfs(fd)
    return disk.f_bavail < min(disk.f_blocks // _RESERVE_PART, _RESERVE_BYTES // disk.f_frsize)
