"""Read the limits of cores and memory that control groups, such as containers, set."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_NO_LIMIT = 1 << 60  # version 1 writes a number near 2^63 for none


def core_limit(root: Path) -> float | None:
    """Return how many cores' time this process may use; None without a limit.

    Args:
        root: The folder that has the system's `proc` and `sys`.
    """
    limits = []
    for folder in _folders(root, "cpu"):
        quota, period = (
            _words(folder / "cpu.max")
            or (*_words(folder / "cpu.cfs_quota_us"), *_words(folder / "cpu.cfs_period_us"))
            or ("max", "0")
        )
        if quota.isdigit() and int(period):
            limits.append(int(quota) / int(period))
    return min(limits, default=None)


def memory_left(root: Path = Path("/")) -> int | None:
    """Return how many bytes this process and its neighbours in the control group may still take.

    Files that the system caches count as free, because it gives them up first.
    """
    left = []
    for folder in _folders(root, "memory"):
        limit = _number(folder, "memory.max", "memory.limit_in_bytes")
        used = _number(folder, "memory.current", "memory.usage_in_bytes")
        if limit is not None and used is not None and limit < _NO_LIMIT:
            left.append(limit - used + _inactive_files(folder))
    return min(left, default=None)


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of this process's control group and of those around it, as far as they are seen."""
    base = root / "sys/fs/cgroup"
    for line in text_of(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mounts = [base / controllers, base / controller] if controllers else [base, base / "unified"]
        group = PurePosixPath(path)
        for place in (group, *group.parents):
            yield from (mount / str(place).lstrip("/") for mount in mounts)


def _inactive_files(folder: Path) -> int:
    pairs = (line.split() for line in text_of(folder / "memory.stat").splitlines())
    values = {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
    return values.get("total_inactive_file", values.get("inactive_file", 0))


def _number(folder: Path, *names: str) -> int | None:
    for name in names:
        if (text := text_of(folder / name).strip()).isdigit():
            return int(text)
    return None


def _words(path: Path) -> tuple[str, ...]:
    return tuple(text_of(path).split())


def text_of(path: Path) -> str:
    """Return the text of a file of the system; an empty one if there is none."""
    try:
        return path.read_text("utf-8", errors="replace")
    except OSError:  # another system or version of control groups, or a container that hides it
        return ""
