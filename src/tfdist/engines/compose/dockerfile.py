"""Write a Dockerfile of an image for tasks: small, pinned, and without root."""

import json
import platform
import re
from collections.abc import Collection, Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import PurePosixPath

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

import tfdist
from tfdist.errors import ConfigError, shown
from tfdist.trainer.sections.engine import DockerfileSection

_SYSTEM = {"sys_platform": "linux", "platform_system": "Linux"}  # of the image, not of this machine
_FILE = """\
# Made by: {made_by}
# Build it with: {build}
ARG BASE={base}

FROM ${{BASE}} AS build
RUN python -m venv /opt/venv
{wheel}RUN /opt/venv/bin/pip install --no-cache-dir \\
    {packages}

FROM ${{BASE}}
COPY --from=build /opt/venv /opt/venv
# Any user can write here, so that --user and new volumes work.
RUN useradd --create-home --uid 10001 tfdist && mkdir -m 1777 /cache /data /runs
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 TFDIST_CACHE_DIR=/cache
WORKDIR /app
{copies}USER 10001
CMD ["python", "-m", "tfdist", "--help"]
"""


def render_dockerfile(section: DockerfileSection, made_by: str, extras: Collection[str] = ()) -> str:
    """Return the Dockerfile, with the versions of all packages that tfdist uses in this environment.

    Args:
        section: What the user chooses.
        made_by: The command, on one line.
        extras: The extras of tfdist that the tasks need.
    """
    python = f"python:{platform.python_version()}-slim-bookworm"
    source = section.tfdist or f"tfdist=={tfdist.__version__}"
    is_wheel = source.endswith(".whl")
    wanted = [f"/tmp/{PurePosixPath(source).name}" if is_wheel else source]  # noqa: S108  # in the first stage
    packages = [*wanted, *section.packages, *_pins(section.packages, frozenset(extras))]
    for word in (section.base or python, source, *packages, *section.copy):
        if not word.isprintable() or "'" in word:
            raise ConfigError("engine.dockerfile", expected="one line without quotes", received=shown(word))
    needs_files = is_wheel or section.copy
    return _FILE.format(
        made_by=made_by,
        build=f"docker build --tag tfdist {'--file FILE .' if needs_files else '- < FILE'}",
        base=section.base or python,
        wheel=f"COPY {_words(source, '/tmp/')}\n" if is_wheel else "",  # noqa: S108
        packages=" \\\n    ".join(f"'{package}'" for package in packages),
        copies="".join(f"COPY {_words(path, f'/app/{PurePosixPath(path).name}')}\n" for path in section.copy),
    )


def _words(*words: str) -> str:
    return json.dumps(words, ensure_ascii=False)


def _pins(chosen: list[str], extras: frozenset[str]) -> list[str]:
    """Return the versions of the packages that tfdist needs here, without those that the user chooses.

    A package that only the extras need may not be installed here; then pip chooses the version.
    """
    try:
        version("tfdist")
    except PackageNotFoundError:
        raise ConfigError("tfdist", "is not installed here", remedy="Type `pip install .` in it") from None
    skipped = {_name_of(package) for package in chosen}
    versions: dict[str, str] = {}
    unpinned: set[str] = set()
    of_extras = set(_needs("tfdist", extras)) - set(_needs("tfdist", frozenset()))
    seen: set[tuple[str, frozenset[str]]] = set()
    unseen = set(_needs("tfdist", extras))
    while unseen:
        name, of_package = package = unseen.pop()
        seen.add(package)
        if name not in skipped:
            try:
                versions[name] = version(name)
                unseen |= set(_needs(name, of_package)) - seen
            except PackageNotFoundError:  # else a requirement for another system
                unpinned |= {name} if package in of_extras else set()
    return [*(f"{name}=={versions[name]}" for name in sorted(versions)), *sorted(unpinned)]


def _needs(package: str, extras: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield the name and the extras of each package that a package with these extras needs in the image."""
    for line in requires(package) or ():
        try:
            requirement = Requirement(line)
        except InvalidRequirement:  # of an old package; pip decides what it does with the line
            continue
        marker = requirement.marker
        if marker is None or any(marker.evaluate({**_SYSTEM, "extra": extra}) for extra in extras or {""}):
            yield canonicalize_name(requirement.name), frozenset(requirement.extras)


def _name_of(package: str) -> str:
    """Return the name with which a line for pip begins, which may also be a path or an address."""
    match = re.match(r"[A-Za-z0-9._-]+", package.strip())
    if match is None:
        raise ConfigError("engine.dockerfile", expected="a requirement of pip", received=shown(package))
    return canonicalize_name(match[0])
