"""Write the file from which SageMaker shows why a job has failed."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from tfdist._utils.write_files import storage_errors
from tfdist.errors import TfdistError

_MOST_CHARACTERS = 1024  # of the failure file that SageMaker shows


def failure_file(environ: Mapping[str, str]) -> Path | None:
    """Return the file whose text SageMaker shows as the reason of a failure; None elsewhere."""
    if not (model := environ.get("SM_MODEL_DIR")):
        return None
    return Path(environ.get("SM_OUTPUT_DIR") or Path(model).parent / "output") / "failure"


def clear_failure(environ: Mapping[str, str]) -> None:
    """Remove the reason of an earlier failure that SageMaker would show."""
    if path := failure_file(environ):
        with storage_errors(path):
            path.unlink(missing_ok=True)


def write_failure(environ: Mapping[str, str], text: str) -> None:
    """Write the reason of a failure for SageMaker."""
    if path := failure_file(environ):
        with storage_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text[:_MOST_CHARACTERS], "utf-8", "backslashreplace")


@contextlib.contextmanager
def failure_written(environ: Mapping[str, str]) -> Iterator[None]:
    """Write the error of the block, if any, to the file that SageMaker reads."""
    clear_failure(environ)
    try:
        yield
    except Exception as error:
        write_failure(
            environ, str(error) if isinstance(error, TfdistError) else f"{type(error).__name__}: {error}"
        )
        raise
