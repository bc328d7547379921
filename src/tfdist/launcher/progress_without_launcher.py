"""Show the progress of a run in one process, which no launcher watches."""

import contextlib
import logging
import sys
from collections.abc import Iterator
from typing import TextIO

import msgspec

from tfdist._utils.terminal_size_and_tables import moves_its_cursor, terminal_size
from tfdist.launcher.live_view import LiveView
from tfdist.launcher.progress_for_engines import prints_progress
from tfdist.launcher.progress_text import ProgressLines, describe_run
from tfdist.launcher.record_events import listening
from tfdist.launcher.run_events import AnyEvent, Evaluated, Progressed, RunStarted

_CLEAR = "\r\x1b[2K"
_log = logging.getLogger("tfdist")


@contextlib.contextmanager
def showing_progress(stream: TextIO | None = None, *, json: bool = False, place: str = "") -> Iterator[None]:
    """Show each event of this process while the block runs.

    A terminal gets a bar; elsewhere the progress is logged every ten seconds. With JSON, the stream gets
    each event as a line.

    Args:
        stream: Where to show it; None for the standard output.
        json: Whether to write JSON in place of text.
        place: The folder of the run.
    """
    stream = stream or sys.stdout
    if json:
        with listening(_JsonLines(stream).handle):
            yield
        return
    if not stream.isatty() or not moves_its_cursor():
        with listening(_ProgressLog(place).handle):
            yield
        return
    bar = _Bar(stream, place)
    handlers = logging.getLogger().handlers
    for handler in handlers:
        handler.addFilter(bar.clear)
    try:
        with listening(bar.handle):
            yield
    finally:
        for handler in handlers:
            handler.removeFilter(bar.clear)
        bar.clear()


class _JsonLines:
    """Each event as a line of JSON, until the reader has gone or the disk is full: the training continues."""

    def __init__(self, stream: TextIO) -> None:
        self._stream: TextIO | None = stream

    def handle(self, event: AnyEvent) -> None:
        """Print an event."""
        try:
            if self._stream is not None:
                print(msgspec.json.encode(event).decode(), file=self._stream, flush=True)
        except OSError:
            self._stream = None


class _Bar:
    """A bar on the last line of a terminal."""

    def __init__(self, stream: TextIO, place: str) -> None:
        self._stream, self._place = stream, place
        self._view = LiveView("", coloured=False, encoding=stream.encoding or "utf-8")
        self._is_shown = self._is_gone = False

    def handle(self, event: AnyEvent) -> None:
        """Draw the bar again if the event changes it."""
        if isinstance(event, Progressed | Evaluated):
            self._view.handle(event)
        elif isinstance(event, RunStarted):
            self.clear()
            self._write(f"{describe_run(event, self._place)}\n")
            return
        if not self._view.reports:
            return
        columns, _ = terminal_size(self._stream.fileno())
        self._write(_CLEAR + self._view.lines(columns - 1, 1)[-1])
        self._is_shown = True

    def clear(self, _: object = None) -> bool:
        """Remove the bar, before a line is logged; return True, as a filter of logs that keeps the line."""
        if self._is_shown:
            self._write(_CLEAR)
            self._is_shown = False
        return True

    def _write(self, text: str) -> None:
        if self._is_gone:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:  # somebody has closed the terminal: the training continues
            self._is_gone = True


class _ProgressLog:
    """The run and its progress as lines of a log."""

    def __init__(self, place: str) -> None:
        self._place, self._lines = place, ProgressLines()

    def handle(self, event: AnyEvent) -> None:
        """Log the start, and the progress if that is due and is not printed for an engine."""
        if isinstance(event, RunStarted):
            _log.info("%s", describe_run(event, self._place).replace("\n", "; "))
        if not isinstance(event, Progressed) or prints_progress():
            return
        if (line := self._lines.after(event)) is not None:
            _log.info("%s", line)
