"""Expand Slurm's node lists, such as `gpu[001-004,7],login`, without asking Slurm."""

import re

from tfdist.errors import ConfigError, shown

__all__ = ["MOST_HOSTS", "expand_hosts"]

# Slurm's largest sites have about ten thousand nodes. A longer list is a mistake and could fill the memory.
MOST_HOSTS = 65_536


def expand_hosts(text: str, name: str) -> list[str]:
    """Expand a Slurm node list: `gpu[001-003,7],login` gives gpu001, gpu002, gpu003, gpu7, login.

    >>> expand_hosts("a[1-2]b[0-1]", "SLURM_STEP_NODELIST")
    ['a1b0', 'a1b1', 'a2b0', 'a2b1']
    """
    part = r"[^\[\],\s]*(?:\[[^\[\]\s]*\][^\[\],\s]*)*"
    if not re.fullmatch(rf"{part}(?:,{part})*", text):
        raise ConfigError(name, expected="a list such as gpu[001-004,7],login", received=shown(text))
    hosts: list[str] = []
    for expression in re.findall(rf"(?:^|(?<=,))(?:{part})", re.sub(r"\s", "", text)):
        hosts += _expand(expression, name, MOST_HOSTS - len(hosts))
    return hosts


def _expand(expression: str, name: str, most: int) -> list[str]:
    names = [""]
    for literal, ranges in re.findall(r"([^\[\]]+)|\[([^\[\]]*)\]", expression):
        numbers = [literal] if literal else _expand_ranges(ranges, name, most)
        if len(names) * len(numbers) > most:
            raise ConfigError(name, expected=f"at most {MOST_HOSTS} hosts", received="more")
        names = [stem + number for stem in names for number in numbers]
    if names == [""]:
        raise ConfigError(name, expected="a name between two commas", received="none")
    return names


def _expand_ranges(ranges: str, name: str, most: int) -> list[str]:
    numbers: list[str] = []
    for part in ranges.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part)
        if not match:
            raise ConfigError(name, expected="numbers such as [001-004,7]", received=shown(f"[{ranges}]"))
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or len(numbers) + last - first >= most:
            expected = f"a rising range of at most {MOST_HOSTS} hosts"
            raise ConfigError(name, expected=expected, received=shown(part))
        numbers += [str(number).zfill(len(match[1])) for number in range(first, last + 1)]
    return numbers
