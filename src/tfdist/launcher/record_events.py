"""Record the events of a run: in a file, with listeners in this process, and with the launcher.

The launcher records what it sees of the tasks. The chief records what it does; where a launcher watches it,
the launcher gets those events too, and shows them.
"""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from tfdist.launcher import send_reports
from tfdist.launcher.run_events import AnyEvent, Progressed, TaskSpeed, Warned, stamped

VARIABLE = "TFDIST_EVENTS"  # the file to which the chief of a launch adds its events
# Of one kind that may come often: a run of a month has some ten thousand of them, and one of a minute has 60.
_SECONDS_BETWEEN, _PART_BETWEEN = 1.0, 1e-3
_OFTEN = (Progressed, TaskSpeed)


class EventFile:
    """A file to which processes of one machine add whole lines."""

    def __init__(self, path: Path) -> None:
        """Open the file; a run that continues adds to the events of its earlier starts."""
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._began = time.monotonic()
        self._recorded_at: dict[type, float] = {}
        # A newline after a line of which the disk took a part, also in an earlier start.
        self._lead = b"\n" if _is_torn(path) else b""
        self._lock = threading.Lock()

    def add(self, event: AnyEvent) -> None:
        """Write an event, unless one of a kind that comes often was written just before."""
        # A full disk ends the training where it saves, with a message; here it only costs the event.
        with self._lock, contextlib.suppress(OSError):
            if not self._is_too_early(event):
                line = self._lead + msgspec.json.encode(event) + b"\n"
                if written := os.write(self._fd, line):
                    self._lead = b"" if written == len(line) else b"\n"

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _is_too_early(self, event: AnyEvent) -> bool:
        now, kind = time.monotonic(), type(event)
        is_last = isinstance(event, Progressed) and event.step == event.steps
        pause = max(_SECONDS_BETWEEN, _PART_BETWEEN * (now - self._began))
        if isinstance(event, _OFTEN) and not is_last and now - self._recorded_at.get(kind, -pause) < pause:
            return True
        self._recorded_at[kind] = now
        return False


def _is_torn(path: Path) -> bool:
    """Return whether the last line of a file has no end; False where that cannot be read."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    return False


_file: EventFile | None = None
_file_of_script: EventFile | None = None  # of a script that reports by itself, for as long as the process
_listeners: list[Callable[[AnyEvent], object]] = []


@contextlib.contextmanager
def events_to_file(path: Path | None = None) -> Iterator[None]:
    """Make `record` write to the file that the launcher names, or else to this one, while the block runs.

    A folder that cannot be written to leaves the run without events: what it needs is checked elsewhere.
    """
    global _file
    named = os.environ.get(VARIABLE)
    path = Path(named) if named else path
    if path is None or _file is not None:
        yield
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        _file = EventFile(path)
    handler = _WarningsToEvents(logging.WARNING)
    logging.getLogger("tfdist").addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger("tfdist").removeHandler(handler)
        if _file is not None:
            _file.close()
        _file = None


class _WarningsToEvents(logging.Handler):
    """Record what is logged, and print it as Python does where no other handler is set up."""

    def emit(self, record_: logging.LogRecord) -> None:
        text = record_.getMessage().encode("utf-8", "backslashreplace").decode()  # a path may be no UTF-8
        record(Warned(text=text))
        others = {*logging.getLogger("tfdist").handlers, *logging.getLogger().handlers} - {self}
        if not others and logging.lastResort is not None:
            logging.lastResort.handle(record_)


def is_launched() -> bool:
    """Return whether a launcher on this machine records the events of the tasks."""
    return bool(os.environ.get(VARIABLE))


@contextlib.contextmanager
def listening(listener: Callable[[AnyEvent], object]) -> Iterator[None]:
    """Call a function with each event that this process records while the block runs."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def record(event: AnyEvent) -> None:
    """Add an event of the chief to its file, if it has one, and tell whoever watches the run.

    Progress goes to the launcher, the engine or Kubeflow; other events to the launcher alone.
    """
    stamped(event)
    if (file := _file or _file_of_script) is not None:
        file.add(event)
    for listener in _listeners:
        listener(event)
    if isinstance(event, Progressed):
        send_reports.send_progress(event)
    else:
        send_reports.report_event(msgspec.json.encode(event))


def report_progress(
    step: int,
    steps: int | None = None,
    *,
    examples_per_second: float | None = None,
    loss: float | None = None,
    accuracy: float | None = None,
) -> None:
    """Tell the launcher, engine or Kubeflow how many steps a script has done; do nothing if none listens.

    A call takes some microseconds. It never waits for the launcher: if that reads slowly, the report is
    dropped. The events of the run have it once a second at most, an engine's file every two seconds, and a
    log every ten.
    """
    global _file_of_script
    if _file_of_script is None and (named := os.environ.get(VARIABLE)):
        with contextlib.suppress(OSError):  # a run directory that is gone; the launcher says so
            _file_of_script = EventFile(Path(named))
    record(Progressed(step, steps, examples_per_second, loss, accuracy))
