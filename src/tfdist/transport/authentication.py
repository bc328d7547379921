"""Recognize the tasks of one's own cluster by a shared secret, without sending it."""

import hashlib
import hmac
import os
import socket
from collections.abc import Mapping
from pathlib import Path

from tfdist.errors import ConfigError
from tfdist.launcher.environment import SECRET
from tfdist.transport.tls import TlsConnection

__all__ = ["PROOF_BYTES", "SECRET", "SECRET_FILE", "Connection", "Proofs", "find_secret"]

Connection = socket.socket | TlsConnection

SECRET_FILE = f"{SECRET}_FILE"
PROOF_BYTES = hashlib.sha256().digest_size
_MIN_LENGTH = 16  # characters
_MOST_BYTES = 1 << 16


def find_secret(environ: Mapping[str, str] | None = None) -> bytes | None:
    """Return the secret of this task's cluster; None if it has none.

    The launcher creates a new secret at each start and passes it in TFDIST_SECRET. A user who starts tasks
    in another way sets that variable, or names a file in TFDIST_SECRET_FILE.

    Raises:
        ConfigError: The file cannot be read, or the secret is too short.
    """
    environ = os.environ if environ is None else environ
    where, secret = SECRET, environ.get(SECRET, "").encode("utf-8", "surrogateescape")
    if not secret and environ.get(SECRET_FILE):
        where = f"{SECRET_FILE}={environ[SECRET_FILE]}"
        try:
            with Path(environ[SECRET_FILE]).open("rb") as file:
                secret = file.read(_MOST_BYTES)  # of a device, there would be no end
        except OSError as error:
            problem = f"cannot be read: {error.strerror}"
            raise ConfigError(where, problem, remedy="Name a file that this task may read") from None
    secret = secret.strip()
    if secret and len(secret) < _MIN_LENGTH:
        expected, received = f"a secret of at least {_MIN_LENGTH} characters", f"one of {len(secret)}"
        remedy = "Make one: python -c 'import secrets; print(secrets.token_hex(32))'"
        raise ConfigError(where, expected=expected, received=received, remedy=remedy)
    return secret or None


class Proofs:
    """Prove to other tasks that this one knows the secret, and check their proofs.

    Attributes:
        is_encrypted: Whether connections are encrypted once they are proven.
    """

    def __init__(self, secret: bytes, mark: bytes, *, is_encrypted: bool = False) -> None:
        """Derive the key from the secret and a mark, such as the cluster's.

        Args:
            secret: What all tasks of the cluster know, and nobody else.
            mark: What the proofs are for.
            is_encrypted: Whether connections are encrypted once they are proven. Both ends must agree.
        """
        self._key = hmac.digest(secret, mark + b" encrypted" * is_encrypted, "sha256")
        self.is_encrypted = is_encrypted

    def prove(self, *words: bytes) -> bytes:
        """Return the proof for these words, each of a fixed length; it takes the secret to compute it."""
        return hmac.digest(self._key, b"".join(words), "sha256")

    def is_proven(self, proof: bytes, *words: bytes) -> bool:
        """Return whether a proof is from a task that knows the secret."""
        return hmac.compare_digest(proof, self.prove(*words))

    def connection(self, proven: socket.socket, *words: bytes, is_caller: bool) -> Connection:
        """Return the connection to use from now on, after both ends have proven these words."""
        if not self.is_encrypted:
            return proven
        return TlsConnection(proven, self.prove(b"tls", *words), is_caller=is_caller)
