"""Copy files from and to an object store, such as gs://bucket/folder, through TensorFlow's file systems."""

import contextlib
import importlib
import importlib.util
import os
import socket
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import tensorflow as tf

from tfdist.errors import ConfigError, StorageError, first_line

_PLUGIN = "tensorflow_io"  # adds s3:// and others
_LAST_OF_PLUGIN = (2, 16)  # the newest TensorFlow for which there is one
_AT_ONCE = 16  # requests; a store answers many small ones together faster than one after the other
_WITHOUT_FOLDERS = ("gs", "s3", "az")
_HOSTS = {"gs": "storage.googleapis.com"}
_LONGEST_REASON = 200
_PROBE_SECONDS = 5.0


@dataclass(frozen=True)
class StoredFile:
    """The size of a file in an object store, and when it was written."""

    size: int
    mtime_ns: int


def check_store(address: str) -> None:
    """Check that TensorFlow can open addresses of this scheme, and that the store is reachable.

    Raises:
        ConfigError: TensorFlow has no file system for the scheme.
        StorageError: The store is unreachable.
    """
    scheme = address.partition("://")[0]
    if scheme not in tf.io.gfile.get_registered_schemes():
        _load_plugin(address)
    if scheme not in (known := tf.io.gfile.get_registered_schemes()):
        raise ConfigError(address, _no_file_system(scheme, known), remedy=_remedy())
    # TensorFlow repeats requests for minutes before it raises an error.
    if scheme in _HOSTS and (reason := why_unreachable(_HOSTS[scheme])):
        remedy = "Check the network; tasks in a private network need network_isolation: never"
        raise StorageError(address, f"is unreachable: {reason}", remedy=remedy)


def why_unreachable(host: str) -> str:
    """Return why a host, or the proxy to it, is unreachable; an empty text if it is reachable.

    This takes seconds; a download that cannot succeed takes minutes to fail.
    """
    proxy = os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy")
    target, port = host, 443
    if proxy:
        parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        target, port = parts.hostname or host, parts.port or 3128
    outcome: list[str] = []

    def connect() -> None:
        try:
            socket.create_connection((target, port), timeout=_PROBE_SECONDS).close()
            outcome.append("")
        except OSError as error:
            outcome.append(error.strerror or str(error))

    # In a thread, because the lookup of a name has no timeout.
    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(_PROBE_SECONDS)
    reason = outcome[0] if outcome else f"no answer in {_PROBE_SECONDS:.0f} s"
    return f"{target}: {reason}" if reason else ""


def list_files(address: str) -> dict[str, StoredFile]:
    """Return all files below an address by their relative names; the name of a file itself is empty."""
    with _one_line_errors(address, "read"), ThreadPoolExecutor(_AT_ONCE) as pool:
        top = tf.io.gfile.stat(address)
        if not top.is_directory:
            return {"": StoredFile(top.length, top.mtime_nsec)}
        files, folders = {}, [""]
        while folders:
            listings = pool.map(lambda folder: tf.io.gfile.listdir(f"{address}/{folder}"), folders)
            names = [
                f"{folder}{name}"
                for folder, listing in zip(folders, listings, strict=True)
                for name in listing
            ]
            folders = [name for name in names if name.endswith("/")]  # as Cloud Storage lists them
            rest = [name for name in names if not name.endswith("/")]
            statuses = pool.map(lambda name: tf.io.gfile.stat(f"{address}/{name}"), rest)
            for name, status in zip(rest, statuses, strict=True):
                if status.is_directory:
                    folders.append(f"{name}/")
                else:
                    files[name] = StoredFile(status.length, status.mtime_nsec)
        return dict(sorted(files.items()))


def list_names(address: str) -> list[str]:
    """Return the names in a folder; there are none in a folder that does not exist."""
    with _one_line_errors(address, "read"):
        try:
            if not tf.io.gfile.stat(address).is_directory:
                return []
            return sorted(name.rstrip("/") for name in tf.io.gfile.listdir(address))
        except tf.errors.NotFoundError:
            return []


def read_file(address: str) -> bytes | None:
    """Return the contents of a file; None if it does not exist."""
    with _one_line_errors(address, "read"):
        try:
            with tf.io.gfile.GFile(address, "rb") as file:
                return bytes(file.read())
        except tf.errors.NotFoundError:
            return None


def write_file(address: str, content: bytes) -> None:
    """Write a file, which readers find when it is complete."""
    with _one_line_errors(address, "written"):
        _make_folder(address)
        with tf.io.gfile.GFile(address, "wb") as file:
            file.write(content)


def download(address: str, folder: Path, names: Iterable[str]) -> None:
    """Copy files, by their relative names, from an address to a folder."""

    def copy(name: str) -> None:
        source, path = f"{address}/{name}".rstrip("/"), folder / name
        if name.startswith("/") or ".." in Path(name).parts:  # anyone who may write there chooses names
            raise StorageError(source, "has a name that leads out of its folder", remedy="Rename it")
        path.parent.mkdir(parents=True, exist_ok=True)
        with _one_line_errors(source, f"copied to {path}"):
            tf.io.gfile.copy(source, str(path), overwrite=True)

    _each(copy, names)


def upload(files: Mapping[str, Path], address: str) -> None:
    """Copy files to their relative names at an address."""

    def copy(name: str) -> None:
        with _one_line_errors(f"{address}/{name}", "written"):
            _make_folder(f"{address}/{name}")
            tf.io.gfile.copy(str(files[name]), f"{address}/{name}", overwrite=True)

    _each(copy, files)


def remove_file(address: str) -> None:
    """Remove a file, if it exists."""
    with _one_line_errors(address, "removed"), contextlib.suppress(tf.errors.NotFoundError):
        tf.io.gfile.remove(address)


def remove_tree(address: str) -> None:
    """Remove a folder and all in it, if it exists."""
    with _one_line_errors(address, "removed"), contextlib.suppress(tf.errors.NotFoundError):
        tf.io.gfile.rmtree(address)


def _each(copy: Callable[[str], None], names: Iterable[str]) -> None:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for _ in pool.map(copy, names):
            pass


def _make_folder(address: str) -> None:
    """Make the folder of a file, except in stores that have none, which would get an empty object for it."""
    if address.partition("://")[0] not in _WITHOUT_FOLDERS:
        tf.io.gfile.makedirs(address.rpartition("/")[0])


def _load_plugin(address: str) -> None:
    """Import the package that adds file systems, if it is installed."""
    if importlib.util.find_spec(_PLUGIN) is None:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns where it was built for another TensorFlow
        try:
            importlib.import_module(_PLUGIN)
        except ImportError as error:
            problem = f"{_PLUGIN} cannot be imported: {error}"
            raise ConfigError(address, problem, remedy=_remedy()) from error


def _no_file_system(scheme: str, known: Iterable[str]) -> str:
    others = ", ".join(f"{other}://" for other in sorted(known) if other not in ("", "file", "ram"))
    return f"TensorFlow {tf.__version__} has no file system for {scheme}://, but for {others or 'none'}"


def _remedy() -> str:
    if tuple(map(int, tf.__version__.split(".")[:2])) <= _LAST_OF_PLUGIN:
        return "Install the tensorflow-io of this TensorFlow, or mount the bucket and name its folder"
    return "Mount the bucket, for instance with mountpoint-s3 or s3fs, and name its folder"


@contextlib.contextmanager
def _one_line_errors(address: str, done: str) -> Iterator[None]:
    """Raise a StorageError of one line for an error of TensorFlow's file systems."""
    try:
        yield
    except tf.errors.NotFoundError as error:
        problem = "does not exist" if done == "read" else f"cannot be {done}: {_reason(error)}"
        raise StorageError(address, problem, remedy="Check the address") from error
    except (tf.errors.PermissionDeniedError, tf.errors.UnauthenticatedError) as error:
        problem = f"cannot be {done}: the store denies access"
        raise StorageError(address, problem, remedy="Check the credentials and their rights") from error
    except tf.errors.OpError as error:
        remedy = "Check the address, the network and the free disk space"
        raise StorageError(address, f"cannot be {done}: {_reason(error)}", remedy=remedy) from error


def _reason(error: tf.errors.OpError) -> str:
    return first_line(error)[:_LONGEST_REASON]
