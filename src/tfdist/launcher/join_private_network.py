"""Join the private network of a launch that runs, to reach its tasks from another process."""

import ctypes
import os
from pathlib import Path

from tfdist.errors import ConfigError
from tfdist.launcher.supervisor.call_libc import call_libc

__all__ = ["join_private_network"]

_REMEDY = (
    "Run it as the user who has started the run, or set launch.network_isolation: never, or use --profile"
)


def join_private_network(pid: int) -> None:
    """Move this process to the network of another one; it must have no thread yet besides the main one.

    The network of an ordinary user belongs to a user namespace, which that user may enter.

    Raises:
        ConfigError: The system does not allow it.
    """
    for kind in ("user", "net"):
        there = Path("/proc", str(pid), "ns", kind)
        try:
            if there.stat().st_ino == Path("/proc/self/ns", kind).stat().st_ino:
                continue
            descriptor = os.open(there, os.O_RDONLY | os.O_CLOEXEC)
            try:
                call_libc("setns", ctypes.c_int(descriptor), ctypes.c_int(0))
            finally:
                os.close(descriptor)
        except OSError as error:
            problem = f"cannot enter the private network of process {pid}: {error.strerror}"
            raise ConfigError("timeline", problem, remedy=_REMEDY) from None
