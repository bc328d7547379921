"""Find the folders of a run: one folder, or those that Vertex AI or SageMaker upload and keep."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tfdist._utils.files import local_path, storage_errors
from tfdist.errors import TfdistError

__all__ = ["RunFolder", "failure_file", "failure_written", "find_run_folder"]

_MOST_CHARACTERS = 1024  # of the failure file that SageMaker shows


@dataclass(frozen=True)
class RunFolder:
    """The folders of a run.

    Attributes:
        root: The folder of the report and of all that has no folder of its own.
        checkpoints: The folder of the checkpoints, one folder a step.
        summaries: The folder of the curves for TensorBoard.
        export: The folder of the exports, one folder a step.
        has_one_export: Whether `export` itself is the exported model, in place of a folder for each step.
    """

    root: Path
    checkpoints: Path
    summaries: Path
    export: Path
    has_one_export: bool = False

    @classmethod
    def at(cls, root: Path) -> "RunFolder":
        """Return the folders of a run that is all in one folder."""
        return cls(root, root / "checkpoints", root / "summaries", root / "export")

    @property
    def is_one_folder(self) -> bool:
        """Return whether the whole run is in `root`, under the usual names."""
        return self == RunFolder.at(self.root)


def find_run_folder(run_dir: str | None, default: str, environ: Mapping[str, str]) -> RunFolder:
    """Return the folders of a run.

    The user's --run_dir comes first, then the variables of Vertex AI or SageMaker, then the default.

    Args:
        run_dir: The value of --run_dir.
        default: The folder without it.
        environ: The environment variables.

    Raises:
        ConfigError: A folder is an address that is not mounted on this machine.
    """
    if run_dir is not None:
        return RunFolder.at(local_path(run_dir, "--run_dir").absolute())
    fallback = RunFolder.at(Path(default).absolute())
    return _of_vertex(fallback, environ) or _of_sagemaker(environ) or fallback


def _of_vertex(fallback: RunFolder, environ: Mapping[str, str]) -> RunFolder | None:
    """Return the folders by the AIP_* variables, of which some may be missing."""
    names = ("AIP_MODEL_DIR", "AIP_CHECKPOINT_DIR", "AIP_TENSORBOARD_LOG_DIR")
    places = {name: local_path(environ[name], name) for name in names if environ.get(name)}
    if not places:
        return None
    folder = fallback
    if model := places.get("AIP_MODEL_DIR"):
        # Vertex AI's model registry expects the SavedModel there, and not in a folder of the step's number.
        folder = replace(RunFolder.at(model.parent), export=model, has_one_export=True)
    return replace(
        folder,
        checkpoints=places.get("AIP_CHECKPOINT_DIR", folder.checkpoints),
        summaries=places.get("AIP_TENSORBOARD_LOG_DIR", folder.summaries),
    )


def _of_sagemaker(environ: Mapping[str, str]) -> RunFolder | None:
    """Return the folders by SM_MODEL_DIR, which is /opt/ml/model; the others are beside it."""
    if not (model := environ.get("SM_MODEL_DIR")):
        return None
    output = Path(environ.get("SM_OUTPUT_DATA_DIR") or Path(model).parent / "output" / "data")
    checkpoints = Path(model).parent / "checkpoints"
    return replace(RunFolder.at(output), checkpoints=checkpoints, export=Path(model))


def failure_file(environ: Mapping[str, str]) -> Path | None:
    """Return the file whose text SageMaker shows as the reason of a failure; None elsewhere."""
    if not (model := environ.get("SM_MODEL_DIR")):
        return None
    return Path(environ.get("SM_OUTPUT_DIR") or Path(model).parent / "output") / "failure"


@contextlib.contextmanager
def failure_written(environ: Mapping[str, str]) -> Iterator[None]:
    """Write the error of the block, if any, to the file that SageMaker reads."""
    path = failure_file(environ)
    if path is None:
        yield
        return
    with storage_errors(path):
        path.unlink(missing_ok=True)  # that of a start before
    try:
        yield
    except Exception as error:
        text = str(error) if isinstance(error, TfdistError) else f"{type(error).__name__}: {error}"
        with storage_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text[:_MOST_CHARACTERS])
        raise
