"""Show a running cluster: what its tasks print, each line after its task's name, and the progress.

Nothing here blocks. Text is written as far as the terminal, file or pipe accepts it. The rest stays in the
tasks' log files and is read again when there is room. So a paused terminal delays no task.
"""

import contextlib
import io
import os
import select
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TextIO

import msgspec

from tfdist._utils.terminal_size_and_tables import moves_its_cursor, terminal_size
from tfdist.launcher.live_view import LiveView
from tfdist.launcher.progress_text import describe_progress, describe_run
from tfdist.launcher.run_events import AnyEvent, Printed, Progressed, RunStarted, stamped
from tfdist.launcher.screen_filter import ScreenFilter
from tfdist.launcher.task_logs import LogTail

_PIPE_BYTES = 4096  # what a writable pipe accepts without blocking
_SECONDS_BETWEEN_LINES, _SECONDS_BETWEEN_BARS, _SECONDS_BETWEEN_MEASUREMENTS = 1.0, 0.2, 2.0
_COLOURS = (36, 33, 35, 32, 34, 31)


class ScreenOptions(NamedTuple):
    """The user's choices about what a launch shows.

    Attributes:
        json: Whether to write JSON objects in place of text.
        verbosity: 0 to leave to the log files what only they need, 1 to show all that the tasks print.
    """

    json: bool = False
    verbosity: int = 0


class Screen:
    """Write to a terminal, file or pipe: the tasks' lines, the launcher's lines, and the state of the run.

    On a terminal, the last lines show a row for each task, and the progress; they are drawn again when
    something has changed. Elsewhere the progress is at most one line a second. With JSON, each line is an
    object: an event, or a line that a task or the launcher has written.
    """

    def __init__(
        self,
        stream: TextIO,
        tails: Sequence[LogTail],
        *,
        lead: str = "",
        place: str = "",
        options: ScreenOptions | None = None,
    ) -> None:
        """Prepare to show a run.

        Args:
            stream: The terminal, file or pipe.
            tails: The logs of the tasks.
            lead: The task that trains or directs the others.
            place: The folder of the run.
            options: The user's choices.
        """
        self._out = _Output(stream)
        self._tails, self._options = tails, options or ScreenOptions()
        self._live = self._out.is_terminal and moves_its_cursor() and not self._options.json
        coloured = self._is_coloured = self._live and not os.environ.get("NO_COLOR")
        self._prefixes = {
            tail.name: _colour(f"[{tail.name}]", number) + " " if coloured else f"[{tail.name}] "
            for number, tail in enumerate(tails)
        }
        self._view = LiveView(lead, coloured=coloured, encoding=self._out.encoding)
        self._notes = ScreenFilter(is_live=self._live, verbosity=self._options.verbosity)
        self._block: list[str] = []  # what the view has drawn
        self._place, self._title = place, ""
        self._is_new = False
        self._shown_at = self._measured_at = float("-inf")

    def say(self, text: str) -> None:
        """Write a line of the launcher."""
        self._print_lines("launcher", "[launcher] ", text)

    def handle(self, event: AnyEvent) -> None:
        """Show an event; that of progress later, with `refresh`."""
        self._view.handle(event)
        if isinstance(event, Progressed):
            self._is_new = True
        elif self._options.json:
            self._out.add(msgspec.json.encode(event).decode() + "\n")
        elif isinstance(event, RunStarted) and (title := describe_run(event, self._place)) != self._title:
            self._title = title  # above the view, where it stays when the view goes
            lines = title.split("\n")
            self.say("\n".join(f"\x1b[1m{line}\x1b[0m" if self._is_coloured else line for line in lines))

    def refresh(self, *, to_the_end: bool = False) -> bool:
        """Show what has come and is due, without blocking; return whether there is more to show now."""
        self._out.flush()
        more = False
        for tail in self._tails:
            if self._out.is_full:
                return False
            if text := tail.read(to_the_end=to_the_end):
                more = True
                if not (text := self._notes.without(text, tail.name)):
                    continue  # only the log file keeps these messages
                self._print_lines(tail.name, self._prefixes[tail.name], text[:-1])
                self._out.flush()
        if self._live:
            self._draw(at_once=to_the_end)
        else:
            self._say_progress(at_once=to_the_end)
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
        """Remove the view."""
        if self._live:
            self._live = False
            self._out.add(self._over_block())
            self._block = []
            self._out.flush()

    def _print_lines(self, name: str, prefix: str, text: str) -> None:
        if self._options.json:
            for line in text.split("\n"):
                event = stamped(Printed(task=name, line=line))
                self._out.add(msgspec.json.encode(event).decode() + "\n")
            return
        lines = f"{prefix}{text}".replace("\n", f"\n{prefix}") + "\n"
        self._out.add(f"{self._over_block()}{lines}{self._drawn_block()}" if self._live else lines)

    def _say_progress(self, *, at_once: bool) -> None:
        now = time.monotonic()
        if not self._is_new or self._out.is_full:
            return
        if now - self._shown_at < _SECONDS_BETWEEN_LINES and not at_once:
            return
        self._is_new, self._shown_at = False, now
        if self._options.json:
            self._out.add(msgspec.json.encode(self._view.reports[-1][1]).decode() + "\n")
        else:
            self.say(describe_progress(self._view.reports))

    def _draw(self, *, at_once: bool) -> None:
        """Draw the view again, if that is due."""
        now = time.monotonic()
        if (
            self._out.is_gone
            or self._out.is_full
            or (now - self._shown_at < _SECONDS_BETWEEN_BARS and not at_once)
        ):
            return
        if now - self._measured_at > _SECONDS_BETWEEN_MEASUREMENTS:
            self._measured_at = now
            self._view.measure()
        self._shown_at = now
        # The last column stays free: some terminals begin a new line after it.
        columns, lines = terminal_size(self._out.fileno)
        block = self._view.lines(columns - 1, lines)
        if block != self._block:
            over = self._over_block()
            self._block = block
            self._out.add(over + self._drawn_block())

    def _over_block(self) -> str:
        """Return what moves the cursor to the beginning of the view, and removes the view."""
        up = f"\x1b[{len(self._block) - 1}A" if len(self._block) > 1 else ""
        return f"\r{up}\x1b[J"

    def _drawn_block(self) -> str:
        return "\r\n".join(self._block)


class _Output:
    """Write text to a stream as far as it accepts it, without blocking."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._unwritten = bytearray()
        self.encoding = getattr(stream, "encoding", None) or "utf-8"
        # A stream that only looks like a file (a notebook's, a test's) is written with its own method.
        self.fileno = stream.fileno() if type(stream) is io.TextIOWrapper else None
        self.is_terminal = self.fileno is not None and os.isatty(self.fileno)
        self.is_gone = False  # the reader of the pipe, or the terminal
        self._poll = select.poll()
        if self.fileno is not None:
            stream.flush()
            self._poll.register(self.fileno, select.POLLOUT)

    @property
    def is_full(self) -> bool:
        return bool(self._unwritten)

    def add(self, text: str) -> None:
        if self.is_gone:
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
            except OSError:  # somebody has closed it: the job continues, and its log files have the rest
                self.is_gone = True
                self._unwritten.clear()
                return
            del self._unwritten[:written]


def _colour(text: str, number: int) -> str:
    return f"\x1b[{_COLOURS[number % len(_COLOURS)]}m{text}\x1b[0m"
