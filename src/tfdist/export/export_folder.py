"""Find exported models, and write and read their metadata, without TensorFlow.

RUN/export/<step>/            a SavedModel
    metadata.json             its step and formats, the shape of its images, its classes, its data
    model.keras, model.tflite if the config asks for them
RUN/export/latest             a link to the newest
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tfdist._utils.check_and_expand_paths import exists, is_file, local_path
from tfdist._utils.read_untrusted_files import read_json_file, read_text_file
from tfdist._utils.write_files import set_link, storage_errors, write_json, write_whole
from tfdist.errors import ConfigError, DataError

Format = Literal["saved_model", "keras", "tflite"]
FILES: Mapping[str, str] = {"keras": "model.keras", "tflite": "model.tflite"}

_METADATA = "metadata.json"
_LATEST = "latest"
_LONGEST_NAME = 100  # of the step that `latest` names


@dataclass(frozen=True)
class Exported:
    """The place of an exported model, and the metadata that a prediction needs."""

    path: Path
    format: Format
    image_shape: tuple[int, int, int]
    classes: tuple[str, ...]
    about: Mapping[str, Any]


def find_export(place: str | os.PathLike[str]) -> Exported:
    """Return the exported model at a path.

    Args:
        place: A run's folder or its `export`, which mean the newest model; the folder of one export; or a
            `.keras` or `.tflite` file in one.

    Raises:
        ConfigError: The path has no exported model, or tfdist has not written it.
    """
    path = local_path(os.fspath(place), "model")
    if not exists(path):
        problem = "does not exist, or may not be read"
        raise ConfigError(str(path), problem, remedy="Name a run's folder, or an exported model")
    if path.is_file():
        formats: dict[str, Format] = {".keras": "keras", ".tflite": "tflite"}
        if path.suffix not in formats:
            raise ConfigError(
                str(path), expected="a folder, a .keras or a .tflite file", received=f"'{path.name}'"
            )
        return _described(path, path.parent, formats[path.suffix])
    places = (path, _newest(path), _newest(path / "export"))
    folder = next((place for place in places if is_file(place / "saved_model.pb")), None)
    if folder is None:
        remedy = "A completed run has one in RUN/export/latest"
        raise ConfigError(str(path), "has no exported model", remedy=remedy)
    folder = folder.resolve()  # a reader reads one export, also if `latest` changes in the meantime
    return _described(folder, folder, "saved_model")


def write_metadata(folder: Path, *, image_shape: tuple[int, ...], about: Mapping[str, Any]) -> None:
    """Write the metadata that `find_export` reads beside a model."""
    write_json(folder / _METADATA, {"image_shape": list(image_shape), **about})


def set_latest(folder: Path, name: str) -> None:
    """Set `latest` to one of a folder's exports, atomically: it always leads to a complete model.

    It is a link, or a file that contains the name if the file system does not support links.
    """
    latest = folder / _LATEST
    with storage_errors(latest):
        try:
            set_link(latest, name)
        except OSError:  # FAT and some network file systems; on a full disk, the file fails too
            write_whole(latest, f"{name}\n".encode())


def _newest(folder: Path) -> Path:
    """Return the path of the newest export, which may not exist."""
    latest = folder / _LATEST
    if not is_file(latest):
        return latest
    try:
        name = read_text_file(latest).strip()
    except (OSError, ValueError) as error:
        raise DataError(str(latest), f"cannot be read: {error}", remedy="Name one export instead") from None
    # Only the last part of the name, so that it cannot lead out of the folder.
    return folder / Path(name[:_LONGEST_NAME] or _LATEST).name


def _described(path: Path, folder: Path, form: Format) -> Exported:
    described = folder / _METADATA
    try:
        about = read_json_file(described)
        height, width, channels = map(int, about["image_shape"])
        classes = tuple(map(str, about["classes"]))
    except FileNotFoundError:
        problem = f"is not an export of tfdist: there is no {_METADATA} in {folder}"
        raise ConfigError(
            str(path), problem, remedy="Name a run's folder, or a model exported there"
        ) from None
    except (OSError, ValueError, TypeError, KeyError, OverflowError) as error:
        raise DataError(str(described), f"is malformed: {type(error).__name__}: {error}") from None
    return Exported(path, form, (height, width, channels), classes, about)
