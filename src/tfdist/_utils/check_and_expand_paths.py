"""Check and expand paths that users name: with no error for one that may not be searched, or one line.

Before Python 3.14, `Path.exists` raises where a folder on the way may not be searched, or a name is too long.
"""

import os
from pathlib import Path

from tfdist.errors import ConfigError, shown

_LONGEST_NAME = 255  # bytes, of a file on Linux
_BUCKETS = Path("/gcs")  # where Vertex AI mounts all buckets by Cloud Storage FUSE


def exists(path: str | os.PathLike[str]) -> bool:
    """Return whether a path exists, as far as this user can see."""
    return os.path.exists(path)  # noqa: PTH110


def is_file(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a file, as far as this user can see."""
    return os.path.isfile(path)  # noqa: PTH113


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a folder, as far as this user can see."""
    return os.path.isdir(path)  # noqa: PTH112


def expanded_path(path: Path, where: str, remedy: str = "Write the whole path") -> Path:
    """Return a path with a home folder in place of ~ or ~name.

    Raises:
        ConfigError: There is no such home folder.
    """
    try:
        return path.expanduser()
    except RuntimeError:
        raise ConfigError(where, f"no home folder is known for {shown(str(path))}", remedy=remedy) from None


def current_folder() -> Path | None:
    """Return the current folder; None if it was removed."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None


def absolute_path(path: Path, where: str) -> Path:
    """Return a path from the root.

    Raises:
        ConfigError: It begins at the current folder, which was removed.
    """
    if path.is_absolute():
        return path
    if (here := current_folder()) is None:
        remedy = "Change to another folder, or write the whole path"
        raise ConfigError(where, f"{path} is in the current folder, which was removed", remedy=remedy)
    return here / path


def local_path(text: str, where: str) -> Path:
    """Return the path that a user has given, which must be one of this machine, with a home folder for ~.

    Raises:
        ConfigError: It is an address of an object store, of which pathlib would make a local folder.
    """
    place = path_or_address(text, where)
    if isinstance(place, Path):
        return expanded_path(place, where)
    remedy = "Mount the bucket, or copy from and to it before and after the run"
    raise ConfigError(where, expected="a path of this machine", received=shown(text), remedy=remedy)


def path_or_address(text: str, where: str) -> Path | str:
    """Return the path that a user has given, or the address of an object store as text, without a last slash.

    gs://bucket/folder is /gcs/bucket/folder if the bucket is mounted there, as Vertex AI does.

    Raises:
        ConfigError: It is an address without a bucket, or not a possible name.
    """
    try:
        is_name = "\0" not in text and max(map(len, text.encode().split(b"/"))) <= _LONGEST_NAME
    except UnicodeEncodeError:  # os.fsdecode's form of such bytes, which TensorFlow does not take
        raise ConfigError(where, f"{shown(text)} is not UTF-8", remedy="Rename it") from None
    if not is_name:
        expected = f"names without NUL, of at most {_LONGEST_NAME} bytes"
        raise ConfigError(where, expected=expected, received=shown(text))
    scheme, is_address, rest = text.partition("://")
    if not is_address:
        return Path(text)
    bucket, _, folder = rest.partition("/")
    if not bucket.strip("."):
        expected = "an address such as gs://bucket/folder"
        raise ConfigError(where, expected=expected, received=shown(text))
    if scheme == "gs" and (_BUCKETS / bucket).is_dir():
        return _BUCKETS / bucket / folder.strip("/")
    return text.rstrip("/")


def default_cache_dir() -> Path:
    """Return the folder for prepared data: TFDIST_CACHE_DIR, or tfdist in the user's cache folder."""
    if chosen := os.environ.get("TFDIST_CACHE_DIR"):
        return local_path(chosen, "TFDIST_CACHE_DIR")
    usual = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    return expanded_path(usual, "cache folder", "Set TFDIST_CACHE_DIR to a folder of yours") / "tfdist"
