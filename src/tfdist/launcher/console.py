"""Show a running cluster: what its tasks print, each line after its task's name, and the progress.

Nothing here blocks. Text is written as far as the terminal, file or pipe accepts it. The rest stays in the
tasks' log files and is read again when there is room. So a paused terminal delays no task.
"""

import contextlib
import io
import os
import re
import select
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

from tfdist.launcher.chief_reports import Progress
from tfdist.launcher.progress_text import describe_progress

__all__ = ["LogTail", "Screen", "last_lines", "without_control_sequences"]

_CHUNK = 64 * 1024
_PIPE_BYTES = 4096  # what a writable pipe accepts without blocking
_SECONDS_BETWEEN_LINES, _SECONDS_BETWEEN_BARS = 1.0, 0.2
_RATE_WINDOW_SECONDS = 30.0
# Colours and cursor movements of one task would spoil the lines of the others. The log file keeps them.
# \x80 to \x9f are control characters too (C1): \x9b begins a sequence as \x1b[ does.
_CONTROL_SEQUENCES = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b[@-_]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# Messages of TensorFlow's C++ at level INFO. Since 2.20 no variable silences them before TensorFlow is
# loaded.
_TENSORFLOW_INFO = re.compile(
    r"^(?:WARNING: All log messages before absl::InitializeLog\(\) .*|I\d{4} [\d:.]+ +\d+ \S+:\d+\] .*"
    r"|To enable the following instructions: .* rebuild TensorFlow .*)\n",
    re.MULTILINE,
)
_COLOURS = (36, 33, 35, 32, 34, 31)


class LogTail:
    """A reader of whole lines that are added to a log file."""

    def __init__(self, name: str, path: Path, start: int) -> None:
        self.name = name
        self._path = path
        self._start = start
        self._file = open(path, "rb")  # noqa: SIM115  # closed by close()
        self._file.seek(start)
        self._rest = b""

    def read(self, *, to_the_end: bool = False) -> str:
        """Return new lines, about 64 KiB at most; `to_the_end` includes a last line without a line end."""
        while data := self._file.read(_CHUNK):
            lines, end, self._rest = (self._rest + data).rpartition(b"\n")
            if len(self._rest) > _CHUNK:  # a very long line is shown in parts
                lines, end, self._rest = lines + end + self._rest, b"\n", b""
            if end:
                return _printable_text(lines + end)
        if to_the_end and self._rest:
            lines, self._rest = self._rest + b"\n", b""
            return _printable_text(lines)
        return ""

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def last_lines(path: Path, start: int, count: int) -> list[str]:
    """Return the last lines that were added to a log file after a position; none if it was removed."""
    try:
        with open(path, "rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(start, end - _CHUNK))
            lines = _printable_text(file.read()).rstrip().split("\n")
    except FileNotFoundError:
        return []
    return [line[:500] for line in lines[-count:]]


def _printable_text(data: bytes) -> str:
    text = data.decode("utf-8", "backslashreplace").replace("\r\n", "\n")
    if "\r" in text:  # of a line that was overwritten, show the last version
        text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return without_control_sequences(text)


def without_control_sequences(text: str) -> str:
    """Return a text without what a terminal would take for commands."""
    return _CONTROL_SEQUENCES.sub("", text)


class Screen:
    """Write to a terminal, file or pipe: the tasks' lines, the launcher's lines, and the progress.

    On a terminal, progress is a bar on the last line; elsewhere it is at most one line a second.
    """

    def __init__(self, stream: TextIO, tails: Sequence[LogTail]) -> None:
        self._out = _Output(stream)
        self._tails = tails
        self._live = self._out.is_terminal
        coloured = self._live and not os.environ.get("NO_COLOR")
        self._prefixes = {
            tail.name: _colour(f"[{tail.name}]", number) + " " if coloured else f"[{tail.name}] "
            for number, tail in enumerate(tails)
        }
        self._bar = ""
        self._reports: deque[tuple[float, Progress]] = deque()
        self._is_new = False
        self._shown_at = float("-inf")

    def say(self, text: str) -> None:
        """Write a line of the launcher."""
        self._print("".join(f"[launcher] {line}\n" for line in text.splitlines()))

    def progress(self, report: Progress) -> None:
        """Store a report, which is shown later."""
        now = time.monotonic()
        if self._reports and report.step < self._reports[-1][1].step:
            self._reports.clear()  # training was restarted from a checkpoint
        if not self._reports or report.step > self._reports[-1][1].step:
            self._reports.append((now, report))
        while len(self._reports) > 2 and now - self._reports[0][0] > _RATE_WINDOW_SECONDS:
            self._reports.popleft()
        self._reports[-1] = (self._reports[-1][0], report)
        self._is_new = True

    def refresh(self, *, to_the_end: bool = False) -> bool:
        """Show what has come and is due, without blocking; return whether there is more to show now."""
        self._out.flush()
        more = False
        for tail in self._tails:
            if self._out.is_full:
                return False
            if text := tail.read(to_the_end=to_the_end):
                more = True
                if not (text := _TENSORFLOW_INFO.sub("", text)):
                    continue  # only the log file keeps these messages
                prefix = self._prefixes[tail.name]
                self._print(prefix + text[:-1].replace("\n", f"\n{prefix}") + "\n")
                self._out.flush()
        self._show_progress(at_once=to_the_end)
        self._out.flush()
        return more and not self._out.is_full

    @property
    def has_unwritten(self) -> bool:
        """Return whether some text is not written yet."""
        return self._out.is_full

    @contextlib.contextmanager
    def room_wakes(self, poll: select.poll) -> Iterator[None]:
        """Make a poll return as soon as there is room for text that is not written yet."""
        # Only then: poll reports a pipe without a reader at every call.
        if self._out.fileno is None or not self.has_unwritten:
            yield
            return
        poll.register(self._out.fileno, select.POLLOUT)
        try:
            yield
        finally:
            poll.unregister(self._out.fileno)

    def close(self) -> None:
        """Remove the bar."""
        self._live, self._bar = False, ""
        if self._out.is_terminal:
            self._out.add("\r\x1b[2K")
            self._out.flush()

    def _print(self, text: str) -> None:
        self._out.add(f"\r\x1b[2K{text}{self._bar}" if self._live and self._bar else text)

    def _show_progress(self, *, at_once: bool) -> None:
        now = time.monotonic()
        wait = _SECONDS_BETWEEN_BARS if self._live else _SECONDS_BETWEEN_LINES
        if not self._is_new or self._out.is_full or (now - self._shown_at < wait and not at_once):
            return
        self._is_new, self._shown_at = False, now
        line = describe_progress(self._reports)
        if not self._live:
            self.say(line)
            return
        last = self._reports[-1][1]
        bar = _draw_bar(last.step / last.steps, self._out.encoding) if last.steps else ""
        self._bar = f"{bar}{line}"[: self._out.columns - 1]
        self._out.add(f"\r\x1b[2K{self._bar}")


class _Output:
    """Write text to a stream as far as it accepts it, without blocking."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._unwritten = bytearray()
        self.encoding = getattr(stream, "encoding", None) or "utf-8"
        # A stream that only looks like a file (a notebook's, a test's) is written with its own method.
        self.fileno = stream.fileno() if type(stream) is io.TextIOWrapper else None
        self.is_terminal = self.fileno is not None and os.isatty(self.fileno)
        self._poll = select.poll()
        if self.fileno is not None:
            stream.flush()
            self._poll.register(self.fileno, select.POLLOUT)
        self._is_gone = False

    @property
    def is_full(self) -> bool:
        return bool(self._unwritten)

    @property
    def columns(self) -> int:
        # A terminal whose size is not set reports 0.
        return (os.get_terminal_size(self.fileno).columns if self.fileno is not None else 0) or 80

    def add(self, text: str) -> None:
        if self._is_gone:
            return
        if self.fileno is None:
            self._stream.write(text)
        else:
            self._unwritten += text.encode(self.encoding, "backslashreplace")

    def flush(self) -> None:
        while self._unwritten and self.fileno is not None and self._poll.poll(0):
            try:
                written = os.write(self.fileno, self._unwritten[:_PIPE_BYTES])
            except BlockingIOError:  # another process filled the pipe in between
                return
            except OSError:  # the reader has closed it: the job continues, and its log files have the rest
                self._is_gone = True
                self._unwritten.clear()
                return
            del self._unwritten[:written]


def _colour(text: str, number: int) -> str:
    return f"\x1b[{_COLOURS[number % len(_COLOURS)]}m{text}\x1b[0m"


def _draw_bar(part: float, encoding: str, width: int = 24) -> str:
    full, empty = ("━", "─") if "utf" in encoding.lower() else ("#", "-")
    done = round(max(0.0, min(part, 1.0)) * width)
    return f"{full * done}{empty * (width - done)} "
