"""Find the folders of a run: one folder, or those that Vertex AI or SageMaker upload and keep.

A folder in an object store, such as gs://bucket/runs/x, has a copy below the cache folder, in which the run
works. remote_run_folder.py keeps the two the same.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tfdist._utils.check_and_expand_paths import (
    absolute_path,
    default_cache_dir,
    expanded_path,
    path_or_address,
)
from tfdist.errors import ConfigError, shown


@dataclass(frozen=True)
class RunFolder:
    """The folders of a run.

    Attributes:
        root: The folder of the report and of all that has no folder of its own.
        checkpoints: The folder of the checkpoints, one folder a step.
        summaries: The folder of the curves for TensorBoard.
        export: The folder of the exports, one folder a step.
        has_one_export: Whether `export` itself is the exported model, in place of a folder for each step.
        copies: The folders that are copies, each with its address in an object store.
    """

    root: Path
    checkpoints: Path
    summaries: Path
    export: Path
    has_one_export: bool = False
    copies: tuple[tuple[Path, str], ...] = ()

    @classmethod
    def at(cls, place: Path | str) -> "RunFolder":
        """Return the folders of a run that is all in one folder: a path, or an address of an object store."""
        root = _copy_of(place) if isinstance(place, str) else place
        copies = ((root, place),) if isinstance(place, str) else ()
        return cls(root, root / "checkpoints", root / "summaries", root / "export", copies=copies)

    @property
    def report_file(self) -> Path:
        """Return the file of the config, the results and the versions."""
        return self.root / "report.json"

    @property
    def history_file(self) -> Path:
        """Return the file of the starts of the run."""
        return self.checkpoints / "history.json"

    @property
    def reached_file(self) -> Path:
        """Return the file of the number of steps done."""
        return self.checkpoints / "reached"

    @property
    def best_file(self) -> Path:
        """Return the file in which an evaluator task notes the step of the best checkpoint."""
        return self.checkpoints / "best.json"

    @property
    def evaluations_file(self) -> Path:
        """Return the file in which an evaluator task notes its results."""
        return self.checkpoints / "evaluations.jsonl"

    @property
    def place(self) -> str:
        """Return the path or the address of `root`."""
        return self.shown(self.root)

    @property
    def is_one_folder(self) -> bool:
        """Return whether the whole run is in `root`, under the usual names."""
        return self == RunFolder.at(self.address_of(self.root) or self.root)

    def export_of(self, step: int) -> Path:
        """Return the folder of the model that is exported after a step."""
        return self.export if self.has_one_export else self.export / str(step)

    def address_of(self, path: Path) -> str | None:
        """Return the address of a file or folder of the run; None if it is only on this machine."""
        for copy, address in self.copies:
            if path.is_relative_to(copy):
                return "/".join((address, *path.relative_to(copy).parts))
        return None

    def shown(self, path: Path) -> str:
        """Return a file's or folder's address, or else its path, as a user knows it."""
        return self.address_of(path) or str(path)

    def with_copy_for(self, reader: str) -> "RunFolder":
        """Return the same folders with copies of their own, for a second process that reads the run."""
        moved = {copy: copy.with_name(f"{copy.name}-{reader}") for copy, _ in self.copies}

        def own(path: Path) -> Path:
            for copy, other in moved.items():
                if path.is_relative_to(copy):
                    return other / path.relative_to(copy)
            return path

        return replace(
            self,
            root=own(self.root),
            checkpoints=own(self.checkpoints),
            summaries=own(self.summaries),
            export=own(self.export),
            copies=tuple((moved[copy], address) for copy, address in self.copies),
        )


def find_run_folder(run_dir: str | None, default: Path, environ: Mapping[str, str]) -> RunFolder:
    """Return the folders of a run.

    The user's --run_dir comes first, then the variables of Vertex AI or SageMaker, then the default.

    Raises:
        ConfigError: An address has no bucket.
    """
    if run_dir is not None:
        return RunFolder.at(_place(run_dir, "--run_dir"))
    found = _of_vertex(default, environ) or _of_sagemaker(environ)
    return found or RunFolder.at(absolute_path(default, "run folder"))


def _of_vertex(default: Path, environ: Mapping[str, str]) -> RunFolder | None:
    """Return the folders by the AIP_* variables, of which some may be missing."""
    names = ("AIP_MODEL_DIR", "AIP_CHECKPOINT_DIR", "AIP_TENSORBOARD_LOG_DIR")
    places = {name: _place(environ[name], name) for name in names if environ.get(name)}
    if not places:
        return None
    if not (model := places.get("AIP_MODEL_DIR")):
        folder = RunFolder.at(absolute_path(default, "run folder"))
    else:
        # Vertex AI's model registry expects the SavedModel there, and not in a folder of the step's number.
        folder = RunFolder.at(_parent(model, "AIP_MODEL_DIR"))
        export = folder.root / (model.rpartition("/")[2] if isinstance(model, str) else model.name)
        folder = replace(folder, export=export, has_one_export=True)
    if checkpoints := places.get("AIP_CHECKPOINT_DIR"):
        path, copies = _path_and_copies(checkpoints)
        folder = replace(folder, checkpoints=path, copies=(*folder.copies, *copies))
    if summaries := places.get("AIP_TENSORBOARD_LOG_DIR"):
        path, copies = _path_and_copies(summaries)
        folder = replace(folder, summaries=path, copies=(*folder.copies, *copies))
    return folder


def _place(text: str, where: str) -> Path | str:
    """Return an absolute path, or an address."""
    place = path_or_address(text, where)
    return absolute_path(expanded_path(place, where), where) if isinstance(place, Path) else place


def _parent(place: Path | str, where: str) -> Path | str:
    if isinstance(place, Path):
        return place.parent
    parent = place.rpartition("/")[0]
    if parent.endswith("/"):
        expected = "a folder in a bucket, such as gs://bucket/job/model"
        raise ConfigError(where, expected=expected, received=shown(place))
    return parent


def _path_and_copies(place: Path | str) -> tuple[Path, tuple[tuple[Path, str], ...]]:
    """Return the path of a folder, and its address if the path is a copy."""
    if isinstance(place, Path):
        return place, ()
    copy = _copy_of(place)
    return copy, ((copy, place),)


def _copy_of(address: str) -> Path:
    """Return the folder on this machine that is the copy of an address."""
    key = hashlib.sha256(address.encode()).hexdigest()[:12]
    return (default_cache_dir() / "runs" / f"{address.rpartition('/')[2]}-{key}").absolute()


def _of_sagemaker(environ: Mapping[str, str]) -> RunFolder | None:
    """Return the folders by SM_MODEL_DIR, which is /opt/ml/model; the others are beside it."""
    if not (model := environ.get("SM_MODEL_DIR")):
        return None
    output = Path(environ.get("SM_OUTPUT_DATA_DIR") or Path(model).parent / "output" / "data")
    checkpoints = Path(model).parent / "checkpoints"
    return replace(RunFolder.at(output), checkpoints=checkpoints, export=Path(model))
