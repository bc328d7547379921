"""Encrypt a connection between two tasks that have proven to each other that they know the secret.

TLS needs a certificate. Both ends make the same one, from what they have proven: it is for this connection
alone, and nobody without the secret can make it. So nobody needs to hand out certificates, and no end accepts
another connection's.
"""

import contextlib
import errno
import os
import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from tfdist.errors import ConfigError

_BYTES_AT_ONCE = 1 << 18  # what is encrypted and sent together stays in a core's cache
_RECORD, _RECORD_OVERHEAD = 1 << 14, 22  # bytes of TLS 1.3: the most in a record, and what encrypting adds


def check_tls() -> None:
    """Raise ConfigError if this machine cannot encrypt connections."""
    where = "communication.encryption tls"
    if not (ssl.HAS_TLSv1_3 and hasattr(os, "memfd_create")):
        raise ConfigError(where, "needs Linux and an OpenSSL with TLS 1.3", remedy="Use a VPN: WireGuard")
    try:
        import cryptography  # noqa: F401
    except ImportError:
        problem = "needs the package cryptography, which is not installed"
        raise ConfigError(where, problem, remedy="On all tasks: pip install 'tfdist[tls]'") from None


class TlsConnection:
    """A connection that encrypts what it sends, with the methods of a socket that the transport uses.

    One thread may send while another one receives. The first `sendall` or `recv` performs TLS's handshake, so
    both ends begin with one of these.
    """

    def __init__(self, connection: socket.socket, seed: bytes, *, is_caller: bool) -> None:
        """Own the connection.

        Args:
            connection: The connection.
            seed: 32 bytes that only the two ends know.
            is_caller: Whether this end has opened the connection.
        """
        self._connection = connection
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = _context(seed, is_caller=is_caller).wrap_bio(
            self._incoming, self._outgoing, server_side=not is_caller
        )
        self._is_ready = False
        self._lock = threading.Lock()  # OpenSSL's state of a connection is for one thread at a time
        self._received = memoryview(bytearray(_BYTES_AT_ONCE))
        self._unsent = memoryview(b"")  # encrypted bytes
        self._accepted = 0  # how many bytes they are when decrypted

        # These concern the socket alone.
        self.fileno, self.close, self.shutdown = connection.fileno, connection.close, connection.shutdown
        self.setsockopt, self.setblocking = connection.setsockopt, connection.setblocking
        self.settimeout, self.gettimeout = connection.settimeout, connection.gettimeout

    def sendall(self, data: bytes) -> None:
        """Send all bytes; for a connection that blocks."""
        self._shake_hands()
        rest = memoryview(data)
        while rest:
            rest = rest[self.send(rest) :]

    def sendmsg(self, pieces: Sequence[memoryview]) -> int:
        """Send bytes of the first piece; return how many."""
        return self.send(pieces[0])

    def send(self, data: memoryview) -> int:
        """Send bytes; return how many.

        If it raises BlockingIOError, some of them are encrypted already: call it again with the same bytes.
        """
        if not self._unsent:
            with self._lock, _as_connection_error():
                self._accepted = self._tls.write(data[:_BYTES_AT_ONCE])
                self._unsent = memoryview(self._outgoing.read())
        while self._unsent:
            self._unsent = self._unsent[self._connection.send(self._unsent) :]
        return self._accepted

    def recv(self, count: int) -> bytes:
        """Receive up to this many bytes; no bytes if the other end has closed the connection."""
        self._shake_hands()
        received = memoryview(bytearray(count))
        return bytes(received[: self.recv_into(received)])

    def recv_into(self, buffer: memoryview | bytearray, count: int = 0, flags: int = 0) -> int:
        """Receive up to `count` bytes, or all that there is room for, with MSG_WAITALL; return how many."""
        into = memoryview(buffer)[: count or None]
        filled = self._decrypt(into)
        while not filled or (flags and filled < len(into)):
            try:
                came = self._connection.recv_into(*self._wanted(len(into) - filled, flags))
            except (BlockingIOError, InterruptedError):
                if filled:
                    break
                raise
            if not came:
                break
            with self._lock:
                self._incoming.write(self._received[:came])
            filled += self._decrypt(into[filled:])
        return filled

    def _wanted(self, missing: int, flags: int) -> tuple[memoryview, int, int]:
        """Return where to receive encrypted bytes; with MSG_WAITALL only as many as come for sure."""
        full_records = missing // _RECORD - 1  # OpenSSL may hold a part of one already
        if not flags or full_records <= 0:
            return self._received, 0, 0
        return self._received[: full_records * (_RECORD + _RECORD_OVERHEAD)], 0, flags

    def _decrypt(self, into: memoryview) -> int:
        """Decrypt what has come, one record after the other; return the count of bytes."""
        filled = 0
        while filled < len(into):
            with self._lock, _as_connection_error():
                try:
                    count = self._tls.read(len(into) - filled, into[filled:])
                except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
                    break
            filled += int(count)
        return filled

    def _shake_hands(self) -> None:
        while not self._is_ready:
            with _as_connection_error():
                try:
                    self._tls.do_handshake()
                    self._is_ready = True
                except ssl.SSLWantReadError:
                    pass
                finally:
                    self._connection.sendall(self._outgoing.read())
            if not self._is_ready:
                data = self._connection.recv(_RECORD)
                if not data:
                    raise ConnectionResetError(errno.ECONNRESET, "it has closed the connection")
                self._incoming.write(data)


@contextlib.contextmanager
def _as_connection_error() -> Iterator[None]:
    """Raise what OpenSSL finds wrong as an error of the connection."""
    try:
        yield
    except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
        raise
    except ssl.SSLError as error:
        why = f"what comes from it is not what it has encrypted ({error.reason or error})"
        raise ConnectionAbortedError(errno.ECONNABORTED, why) from error


def _context(seed: bytes, *, is_caller: bool) -> ssl.SSLContext:
    """Return a context that accepts the certificate of this seed alone, and shows it."""
    certificate, key = _certificate(seed)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT if is_caller else ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=certificate.decode())
    if not is_caller:
        context.num_tickets = 0  # no connection is resumed
    # OpenSSL reads a key from a file only. This one has no name in any folder.
    with open(os.memfd_create("tfdist", os.MFD_CLOEXEC), "wb") as file:
        file.write(certificate + key)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
    return context


def _certificate(seed: bytes) -> tuple[bytes, bytes]:
    """Return the certificate that follows from a seed, with its key; always the same bytes."""
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.from_private_bytes(seed)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "tfdist")])
    made: Any = x509.CertificateBuilder(name, name, key.public_key(), 1)
    # Clocks of machines may differ, and nothing but the seed decides whether the certificate is valid.
    made = made.not_valid_before(datetime(2000, 1, 1)).not_valid_after(datetime(9999, 12, 31))
    made = made.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    pem, no_password = serialization.Encoding.PEM, serialization.NoEncryption()
    certificate: bytes = made.sign(key, None).public_bytes(pem)
    return certificate, key.private_bytes(pem, serialization.PrivateFormat.PKCS8, no_password)
