"""Keep freed memory in this process, for the tensors of the next step.

The C library of Linux returns a large piece of memory to the kernel as soon as it is freed. Each training
step frees what it has allocated. So the kernel hands the same memory out again in every step, page by page,
and fills each page with zeros first. On CPUs that takes a good part of a step.
"""

import ctypes
import logging
import os
import sys

_log = logging.getLogger("tfdist")

# Parameters of mallopt, from malloc.h, and the values that tfdist sets.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
_VALUES = {
    _TRIM_THRESHOLD: -1,  # the heap never shrinks
    _TOP_PAD: 1 << 26,  # bytes that it grows by, and that the heaps of threads keep
    _MMAP_MAX: 0,  # large pieces come from the heap too
}
_OF_USERS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_")


def keep_memory() -> bool:
    """Keep freed memory in this process; return whether the C library accepted all settings.

    Nothing changes if the user has configured malloc, or if the C library has no `mallopt`.
    """
    if sys.platform != "linux" or _is_set_up_by_user():
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # as with musl
        return False
    done = [mallopt(ctypes.c_int(name), ctypes.c_int(value)) == 1 for name, value in _VALUES.items()]
    if not all(done):
        _log.info("the C library took %d of %d settings: it may give memory back", sum(done), len(done))
    return all(done)


def _is_set_up_by_user() -> bool:
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    return "glibc.malloc." in tunables or any(os.environ.get(name) for name in _OF_USERS)
