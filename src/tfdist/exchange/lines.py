"""Connect a task with another one: with the next one in the ring and the previous one, or with a server.

The port is one that the system chooses, on the task's own address in the cluster. In a ring it is open only
until the previous task has come. Both ends of a connection prove that they know the cluster's secret, by a
challenge that the other has drawn; whoever does not is hung up on, and is not in the way of those who do.
"""

import contextlib
import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Iterator

from tfdist.exchange.secret import PROOF_BYTES, Proofs
from tfdist.probing import reason_of

__all__ = ["Broken", "Door", "Unmet", "call", "read_exactly"]

_GREETING = b"tfdist exchange 1\n"
_NONCE_BYTES = 32
_SECONDS_TO_SPEAK = 5.0
_MOST_STRANGERS = 64  # at a time
_SECONDS_BETWEEN_LOOKS = 0.1
_log = logging.getLogger("tfdist")


class Broken(ConnectionError):
    """Report that a task is lost, or that the two ends of a line are not at the same exchange."""


class Unmet(Exception):
    """Report a neighbour that was not met, with the reason."""


class Door:
    """Listen for the previous task of the ring, for as long as the block lasts.

    Attributes:
        port: Where to be called.
    """

    def __init__(self, host: str) -> None:
        """Listen on this address, and on no other.

        Raises:
            Unmet: That cannot be.
        """
        try:
            family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
            self._listener = socket.create_server(address[:2], family=family)
            self._listener.settimeout(_SECONDS_BETWEEN_LOOKS)
        except OSError as error:
            raise Unmet(f"cannot listen on {host}: {reason_of(error)}") from error
        self.port: int = self._listener.getsockname()[1]
        self._is_open = True

    def __enter__(self) -> "Door":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let nobody in any more."""
        self._is_open = False
        self._listener.close()

    def caller(self, ranks: bytes, proofs: Proofs, seconds: float) -> socket.socket:
        """Wait until the task comes that can prove that the line is between these ranks.

        Raises:
            Unmet: It has not come in time.
        """
        for line in self.callers(ranks, proofs, seconds):
            return line
        raise Unmet("nobody came who knows the secret")

    def callers(self, ranks: bytes, proofs: Proofs, seconds: float = float("inf")) -> Iterator[socket.socket]:
        """Give everyone who comes in time, and can prove that the line is between these ranks."""
        found: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()
        free = threading.Semaphore(_MOST_STRANGERS)
        until = time.monotonic() + seconds
        try:
            while self._is_open and time.monotonic() < until:
                with contextlib.suppress(queue.Empty):
                    yield found.get_nowait()
                try:
                    line, _ = self._listener.accept()
                except TimeoutError:
                    continue
                except OSError:
                    if not self._is_open:
                        return
                    raise
                # A thread for each who comes: strangers that say nothing take up nobody's time but their own.
                if free.acquire(blocking=False):
                    words = (line, ranks, proofs, found, free)
                    threading.Thread(target=_question, args=words, daemon=True).start()
                else:
                    line.close()
        finally:
            with contextlib.suppress(queue.Empty):
                while True:
                    found.get_nowait().close()


def _question(
    line: socket.socket,
    ranks: bytes,
    proofs: Proofs,
    found: "queue.SimpleQueue[socket.socket]",
    free: threading.Semaphore,
) -> None:
    """Let one who has come prove who it is; hang up on a stranger."""
    ours = os.urandom(_NONCE_BYTES)
    try:
        line.settimeout(_SECONDS_TO_SPEAK)
        line.sendall(_GREETING + ours)
        words = (ranks, ours, read_exactly(line, _NONCE_BYTES))
        if not proofs.is_proven(read_exactly(line, PROOF_BYTES), b"caller", *words):
            raise ConnectionRefusedError("does not know the secret")
        line.sendall(proofs.prove(b"called", *words))
        found.put(line)
    except OSError as error:
        _log.info("hung up on %s: %s", line, error)
        line.close()
    finally:
        free.release()


def call(address: tuple[str, int], ranks: bytes, proofs: Proofs, seconds: float) -> socket.socket:
    """Call the next task of the ring.

    Raises:
        Unmet: It cannot be reached, or one of the two does not know the other's secret.
    """
    who = f"{address[0]}:{address[1]}"
    try:
        line = socket.create_connection(address, timeout=seconds)
    except OSError as error:
        raise Unmet(f"{who} cannot be reached: {reason_of(error)}") from error
    try:
        line.settimeout(_SECONDS_TO_SPEAK)
        if read_exactly(line, len(_GREETING)) != _GREETING:
            raise Unmet(f"{who} is no task of this version of tfdist")
        theirs, ours = read_exactly(line, _NONCE_BYTES), os.urandom(_NONCE_BYTES)
        words = (ranks, theirs, ours)
        line.sendall(ours + proofs.prove(b"caller", *words))
        if not proofs.is_proven(read_exactly(line, PROOF_BYTES), b"called", *words):
            raise Unmet(f"{who} does not know the secret")
    except OSError as error:
        line.close()
        raise Unmet(f"{who} hangs up: is its secret the same?") from error
    except Unmet:
        line.close()
        raise
    return line


def read_exactly(line: socket.socket, count: int) -> bytes:
    """Read so many bytes, within the time that speaking may take in all."""
    heard, until = b"", time.monotonic() + _SECONDS_TO_SPEAK
    while len(heard) < count:
        more = line.recv(count - len(heard))
        if not more:
            raise ConnectionError("hangs up")
        if time.monotonic() > until:
            raise TimeoutError("speaks too slowly")
        heard += more
    return heard
