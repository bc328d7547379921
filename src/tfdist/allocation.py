"""Let this process keep the memory that tensors give back, for those of the next step.

The C library of Linux gives large pieces back to the kernel as soon as nobody holds them. A step of training
gives back all that the one before it took; so the kernel hands the same memory out anew in every step, page
by page, and fills each page with zeros first. On CPUs that is a good part of a step.
"""

import ctypes
import logging
import os
import sys

__all__ = ["keep_memory"]

_log = logging.getLogger("tfdist")

# Of malloc.h: what mallopt can be told, and what it is told.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
_VALUES = {
    _TRIM_THRESHOLD: -1,  # the heap never shrinks
    _TOP_PAD: 1 << 26,  # bytes that it grows by, and that the heaps of threads keep
    _MMAP_MAX: 0,  # large pieces come from the heap too
}
_OF_USERS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_")


def keep_memory() -> bool:
    """Have what is freed stay with this process; say whether that was done.

    It is left alone where the user has set the C library up, and where the C library is none that knows how.
    """
    if sys.platform != "linux" or _is_set_up_by_user():
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # musl has none
        return False
    done = [mallopt(ctypes.c_int(name), ctypes.c_int(value)) == 1 for name, value in _VALUES.items()]
    if not all(done):
        _log.info("the C library took %d of %d settings: it may give memory back", sum(done), len(done))
    return all(done)


def _is_set_up_by_user() -> bool:
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    return "glibc.malloc." in tunables or any(os.environ.get(name) for name in _OF_USERS)
