"""Turn the end of a command into an exit status, and no traceback for what a user can cause."""

import errno
import io
import os
import select
import signal
import sys
from collections.abc import Callable
from typing import TextIO

from tfdist.coordination.stop_signals import ignore_stop_signals
from tfdist.errors import LOST, TfdistError, print_error

_INTERRUPTED = 130


def exit_status(call: Callable[[], int | None]) -> str | int | None:
    """Return the exit status for a call's result or error.

    It is the result of the call (None is 0), 2 for a user's mistake, 138 if a restart may help, 130 on
    Ctrl-C. Standard output may be closed at the start or later, on a full disk, or of few characters.
    """
    _open_streams()
    try:
        status = call()
        sys.stdout.flush()
    except TfdistError as error:
        keep_exit_status(error)
        print_error(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        return _INTERRUPTED
    except OSError as error:
        # The reader (`| head`) has closed the pipe, or somebody the terminal.
        if error.errno in (errno.EPIPE, errno.EIO) and _is_closed(sys.stdout):
            return 0
        if not _refuses(sys.stdout):
            raise
        why = error.strerror
        print_error(f"standard output: cannot be written: {why}. Free disk space, or redirect it elsewhere")
        return 2
    except SystemExit as end:
        return end.code
    finally:
        for stream in (sys.stdout, sys.stderr):
            if _is_closed(stream) or not _is_flushed(stream):
                # Python would report it again at its end, with another exit status.
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return status


def keep_exit_status(error: TfdistError) -> None:
    """Ignore late signals from now on if the exit status of the error tells that all is saved."""
    if error.exit_code == LOST:
        ignore_stop_signals(also=[signal.SIGHUP])  # which systemd sends too


def _open_streams() -> None:
    """Open the streams that the caller has closed, and escape what the encoding of others does not have."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  # until the end
        elif isinstance(stream, io.TextIOWrapper) and stream.errors != "backslashreplace":
            stream.reconfigure(errors="backslashreplace")


def _is_closed(stream: TextIO) -> bool:
    """Return whether the other end of a pipe or a terminal was closed."""
    poll = select.poll()
    try:
        poll.register(stream, 0)
    except (OSError, TypeError, ValueError):  # a stream of a test or a notebook
        return False
    return any(state & (select.POLLERR | select.POLLHUP) for _, state in poll.poll(0))


def _refuses(stream: TextIO) -> bool:
    """Return whether a stream takes not even the end of a line, as on a full disk."""
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):  # a stream of a test or a notebook
        return False
    try:
        os.write(descriptor, b"\n")
    except OSError:
        return True
    return False


def _is_flushed(stream: TextIO) -> bool:
    try:
        stream.flush()
    except OSError:
        return False
    return True
