"""Make an image with a real Python and pip, and an index of packages for it, from files of this host alone."""

import base64
import hashlib
import io
import re
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import msgspec._core

__all__ = ["make_python_image", "pack_wheel"]

_PROGRAMS = ("/bin/sh", "/bin/mkdir", "/usr/sbin/useradd")
_ETC = ("passwd", "group", "login.defs", "nsswitch.conf", "ld.so.cache")
_LEFT_OUT = {
    "__pycache__",
    "test",
    "tests",
    "site-packages",
    "dist-packages",
    "idlelib",
    "tkinter",
    "lib2to3",
}
_MOST_BYTES = 3_000_000  # of a package whose files a wheel has


def make_python_image(environ: dict[str, str], name: str, wheels: Path) -> None:
    """Import the image, whose pip installs from a folder of wheels, /wheels."""
    stem = f"python{sys.version_info.major}.{sys.version_info.minor}"
    library = Path(sys.base_prefix, "lib", stem)
    python = Path(sys.base_prefix, "bin", stem)
    extensions = [*(library / "lib-dynload").glob("*.so"), msgspec._core.__file__]
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", dereference=True) as archive:
        archive.add(library, filter=lambda entry: None if Path(entry.name).name in _LEFT_OUT else entry)
        archive.add(python, f"{sys.base_prefix}/bin/python")
        for path in {*_PROGRAMS, *_libraries([*_PROGRAMS, python, *extensions])}:
            archive.add(path)
        for path in (Path("/etc", name) for name in _ETC):
            if path.exists():
                archive.add(path)
        archive.add(wheels, "wheels")
        for folder in ("tmp", "proc", "sys", "dev"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777
            archive.addfile(entry)
    variables = {
        "PATH": f"{sys.base_prefix}/bin:/usr/bin:/bin:/usr/sbin",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": "/wheels",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    changes = [f"--change=ENV {variable}={value}" for variable, value in variables.items()]
    command = ["docker", "import", *changes, "-", name]
    subprocess.run(command, input=file.getvalue(), env=environ, check=True, capture_output=True, timeout=300)


def _libraries(programs: list[str | Path]) -> set[str]:
    """Return the shared libraries that programs load."""
    done = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True, check=True)
    return set(re.findall(r"(/\S+) \(0x", done.stdout))


def pack_wheel(package: str, folder: Path) -> Path:
    """Write a wheel of an installed package; of a large one, only what pip reads: its name, version and needs."""
    installed = distribution(package)
    name = re.sub(r"[-_.]+", "_", installed.metadata["Name"])
    info = f"{name}-{installed.version}.dist-info"
    files = {str(file): Path(file.locate()) for file in installed.files or () if _is_content(str(file))}
    files = {file: path for file, path in files.items() if path.is_file()}
    if sum(path.stat().st_size for path in files.values()) > _MOST_BYTES:
        files = {}
    contents = {file: path.read_bytes() for file, path in files.items()}
    contents[f"{info}/METADATA"] = (installed.read_text("METADATA") or "").encode()
    contents[f"{info}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    records = [f"{file},sha256={_hash(data)},{len(data)}\n" for file, data in contents.items()]
    contents[f"{info}/RECORD"] = "".join([*records, f"{info}/RECORD,,\n"]).encode()
    path = folder / f"{name}-{installed.version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for file, data in contents.items():
            wheel.writestr(file, data)
    return path


def _is_content(file: str) -> bool:
    return not file.startswith("..") and ".dist-info/" not in file and "__pycache__" not in file


def _hash(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
