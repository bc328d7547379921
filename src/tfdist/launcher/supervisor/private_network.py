"""Move a process to a private network, a new one that no other process can reach, or that of a launch."""

import ctypes
import fcntl
import os
import socket
import struct
import sys
from pathlib import Path

from .process_tree import call_libc

_CLONE_NEWUSER, _CLONE_NEWNET = 0x1000_0000, 0x4000_0000
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1


def why_no_private_network() -> str:
    """Try in a child to enter a private network; return why that is not possible, or an empty string."""
    if sys.platform != "linux":
        return "only Linux has private networks"
    reader, writer = os.pipe()
    try:
        pid = os.fork()
    except OSError as error:  # the user's limit of processes is reached
        os.close(reader)
        os.close(writer)
        return f"fork: {error.strerror}"
    if pid == 0:
        try:
            enter_private_network()
            os._exit(0)
        except OSError as error:
            os.write(writer, f"{error.filename or 'socket'}: {error.strerror}".encode())
        finally:
            os._exit(1)
    os.close(writer)
    with open(reader, "rb") as stream:
        reason = stream.read().decode()
    status = os.waitpid(pid, 0)[1]
    return reason or ("the attempt failed" if status else "")


def enter_private_network() -> None:
    """Move this process, and those that it starts, to a network with only a loopback interface.

    Root can move directly. Other users must enter a user namespace first, in which they keep their user
    number, so that files are read and written as before. Root never enters a user namespace, even if it
    cannot move without: only its own number would exist there, and it would lose access to the files of all
    others.
    """
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0:
        call_libc("unshare", ctypes.c_int(_CLONE_NEWNET))
    else:
        call_libc("unshare", ctypes.c_int(_CLONE_NEWUSER | _CLONE_NEWNET))
        # A user without privileges may map its group only after giving up setgroups().
        Path("/proc/self/setgroups").write_text("deny", "utf-8")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1", "utf-8")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1", "utf-8")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname(), timeout=1).close()


def join_private_network(pid: int) -> None:
    """Move this process to the network of another one; it must have no thread yet besides the main one.

    The network of an ordinary user belongs to a user namespace, which that user may enter.

    Raises:
        OSError: The system does not allow it.
    """
    for kind in ("user", "net"):
        there = Path("/proc", str(pid), "ns", kind)
        if there.stat().st_ino == Path("/proc/self/ns", kind).stat().st_ino:
            continue
        with there.open("rb") as namespace:
            call_libc("setns", ctypes.c_int(namespace.fileno()), ctypes.c_int(0))
