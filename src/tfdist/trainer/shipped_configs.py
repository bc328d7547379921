"""Find the configs and examples that are installed with tfdist, and copy configs for the user to change."""

import itertools
import re
from pathlib import Path

from tfdist._utils.check_and_expand_paths import exists
from tfdist._utils.write_files import write_whole
from tfdist.errors import ConfigError, did_you_mean

_SCHEMA = "tfdist.schema.json"
_PACKAGE = Path(__file__).parents[1]
# A wheel has them in the package. A clone has them in its own folders, next to `src`.
_ROOTS = (_PACKAGE / "shipped", _PACKAGE.parents[1])
_BESIDES = {"cifar10-fast": ["examples/fast_resnet.py"]}  # the files that a config names


def shipped_configs() -> dict[str, Path]:
    """Return the configs by name; empty if the files were not installed."""
    return {path.stem: path for path in sorted((_root() / "configs").glob("*.yaml"))}


def describe_config(path: Path) -> str:
    """Return the first sentence of a config's comment."""
    lines = [
        line.removeprefix("#").strip()
        for line in path.read_text("utf-8").splitlines()
        if line.startswith("#")
    ]
    paragraph = " ".join(itertools.takewhile(bool, lines[2:]))
    return re.split("[.:] ", paragraph, maxsplit=1)[0].strip(" :,")


def copy_config(name: str, folder: Path) -> list[Path]:
    """Copy a config into a folder, with the schema for editors and the files that it names.

    Returns:
        The files that were written, the config first.

    Raises:
        ConfigError: There is no such config, or the folder has another file of that name.
        StorageError: The folder cannot be written to.
    """
    configs = shipped_configs()
    if name not in configs:
        raise ConfigError(f"config {name}", "is unknown", remedy=did_you_mean(name, configs))
    sources = {
        folder / f"{name}.yaml": configs[name],
        folder / _SCHEMA: _root() / "configs" / _SCHEMA,
        **{folder / other: _root() / other for other in _BESIDES.get(name, [])},
    }
    contents = {target: source.read_bytes() for target, source in sources.items()}
    config = folder / f"{name}.yaml"
    contents[config] = contents[config].replace(b"--config configs/", b"--config ")  # in its comment
    for target, content in contents.items():
        if exists(target) and (not target.is_file() or target.read_bytes() != content):
            raise ConfigError(str(target), "exists already", remedy="Name another folder with --output")
    for target, content in contents.items():
        write_whole(target, content)
    return list(sources)


def simulated_example() -> Path:
    """Return the file that `tfdist simulate --example` prints."""
    return _root() / "examples/simulate/inception.yaml"


def _root() -> Path:
    return next((root for root in _ROOTS if (root / "configs" / _SCHEMA).is_file()), _ROOTS[0])
