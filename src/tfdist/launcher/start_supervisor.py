"""Start the supervisor of a launch, which is a process of its own."""

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["as_latin1", "started_supervisor"]

# Runs with the standard library first on the path, and this package's folder last.
_SUPERVISOR_PROGRAM = """
import sys
sys.path.append(sys.argv[1])
from supervisor.supervisor import main
main(int(sys.argv[2]), int(sys.argv[3]))
"""


@contextlib.contextmanager
def started_supervisor(plan: Mapping[str, Any], descriptors: Sequence[int]) -> Iterator[socket.socket]:
    """Start the supervisor with a plan, and yield the socket to it; after the block it ends all tasks."""
    control, its_end = socket.socketpair()
    with control:
        with its_end:
            arguments = Path(__file__).parent, its_end.fileno(), os.getpid()
            process = subprocess.Popen(
                # -I -S: the user's variables and site-packages do not affect it.
                [sys.executable, "-I", "-S", "-c", _SUPERVISOR_PROGRAM, *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[its_end.fileno(), *descriptors],
                start_new_session=True,  # Ctrl-C on the terminal reaches only the launcher
            )
        try:
            with contextlib.suppress(ConnectionError):  # it was killed, which Job.follow reports
                control.sendall(json.dumps(plan).encode() + b"\n")
            yield control
        finally:
            control.close()
            process.wait()


def as_latin1(word: str | os.PathLike[str]) -> str:
    """Return a text in which each character represents one byte, as the supervisor expects it."""
    return os.fsencode(word).decode("latin-1")
