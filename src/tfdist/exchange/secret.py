"""Know the tasks of one's own cluster by a secret that they share, without sending it."""

import hashlib
import hmac
import os
from collections.abc import Mapping
from pathlib import Path

from tfdist.errors import ConfigError
from tfdist.launcher import SECRET

__all__ = ["PROOF_BYTES", "SECRET", "SECRET_FILE", "Proofs", "find_secret"]

SECRET_FILE = f"{SECRET}_FILE"
PROOF_BYTES = hashlib.sha256().digest_size
_LEAST = 16  # characters


def find_secret(environ: Mapping[str, str] | None = None) -> bytes | None:
    """Give the secret of this task's cluster, where it has one.

    The launcher hands out a new one at each start in TFDIST_SECRET. Whoever starts tasks in another way sets
    that, or names a file in TFDIST_SECRET_FILE.

    Raises:
        ConfigError: The file cannot be read, or the secret is too short to be one.
    """
    environ = os.environ if environ is None else environ
    where, secret = SECRET, environ.get(SECRET, "").encode("utf-8", "surrogateescape")
    if not secret and environ.get(SECRET_FILE):
        where = f"{SECRET_FILE}={environ[SECRET_FILE]}"
        try:
            secret = Path(environ[SECRET_FILE]).read_bytes()
        except OSError as error:
            problem = f"cannot be read: {error.strerror}"
            raise ConfigError(where, problem, remedy="Name a file that this task may read") from None
    secret = secret.strip()
    if secret and len(secret) < _LEAST:
        expected, received = f"a secret of at least {_LEAST} characters", f"one of {len(secret)}"
        remedy = "Make one: python -c 'import secrets; print(secrets.token_hex(32))'"
        raise ConfigError(where, expected=expected, received=received, remedy=remedy)
    return secret or None


class Proofs:
    """Prove to others that one knows the secret, and let them prove it: by words that both know."""

    def __init__(self, secret: bytes, mark: bytes) -> None:
        """Take the secret, and a mark, such as the cluster's, that goes into every proof."""
        self._key = hmac.digest(secret, mark, "sha256")

    def prove(self, *words: bytes) -> bytes:
        """Give what only those who know the secret can say of these words, each of a fixed length."""
        return hmac.digest(self._key, b"".join(words), "sha256")

    def is_proven(self, proof: bytes, *words: bytes) -> bool:
        """Say whether a proof is that of somebody who knows the secret."""
        return hmac.compare_digest(proof, self.prove(*words))
