"""Call functions of the C library that Python has not, or has only in later versions."""

import ctypes
import os
from typing import Any

__all__ = ["call_libc"]


def call_libc(function: str, *arguments: Any) -> None:
    """Call a function that returns 0; raise OSError where it returns something else."""
    if getattr(ctypes.CDLL(None, use_errno=True), function)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), function)
