"""Check values of flags that several commands have."""

import re

from tfdist.errors import ConfigError, shown


def worker_counts(text: str, most: int) -> list[int]:
    """Return the numbers of workers, of at most so many, that `1..4` or `1,2,4` names."""
    counts: list[int] = []
    if bounds := re.fullmatch(r"([0-9]{1,5})\.\.([0-9]{1,5})", text):
        counts = list(range(int(bounds[1]), int(bounds[2]) + 1))
    elif re.fullmatch(r"[0-9]{1,5}(,[0-9]{1,5})*", text):
        counts = sorted({int(number) for number in text.split(",")})
    if not counts or not 1 <= counts[0] <= counts[-1] <= most:
        expected = f"1..4 or 1,2,4, of at most {most} workers"
        raise ConfigError("--workers", expected=expected, received=shown(text))
    return counts


def check_utf_8(where: str, *texts: str) -> None:
    """Raise ConfigError for other bytes, which what engines read, and the events of a run, cannot contain."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError:  # os.fsdecode's form of such bytes
            raise ConfigError(where, f"{shown(text)} is not UTF-8", remedy="Rename it") from None
