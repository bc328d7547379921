"""Run the command-line client of an engine, such as kubectl."""

import shutil
import subprocess
from collections.abc import Mapping, Sequence

from tfdist.errors import ConfigError, TfdistError

SECONDS = 60.0  # for an answer of the engine


def run_client(
    words: Sequence[str],
    where: str,
    remedy: str,
    *,
    text: str | None = None,
    environ: Mapping[str, str] | None = None,
    timeout: float = SECONDS,
) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end, whatever its exit status is.

    Args:
        words: The command.
        where: The engine or the command, for messages.
        remedy: The remedy where there is no such command.
        text: The standard input.
        environ: The environment; by default that of this process.
        timeout: The seconds to wait.

    Raises:
        ConfigError: There is no such command.
        TfdistError: It has not answered in time.
    """
    name = "" if words[0] == where else f"{words[0]} "
    if shutil.which(words[0]) is None:
        raise ConfigError(where, f"{name}is not found", remedy=remedy)
    try:
        return subprocess.run(
            words,
            env=environ,
            input=text,
            capture_output=True,
            encoding="utf-8",
            errors="backslashreplace",  # tasks may print any bytes
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TfdistError(where, f"{name}has not answered in {timeout:g} s") from None
