"""Read a range of steps, such as 20:30."""

import re

from tfdist.errors import ConfigError, shown


def parse_steps(text: str, place: str) -> tuple[int, int]:
    """Return the first and the last step of a range such as 20:30.

    Raises:
        ConfigError: It is no range of steps, which count from 1.
    """
    match = re.fullmatch(r"([0-9]{1,18}):([0-9]{1,18})", text)
    first, last = map(int, match.groups()) if match else (0, 0)
    if not 1 <= first <= last:
        expected = "the first and the last step to record, such as 20:30"
        raise ConfigError(place, expected=expected, received=shown(text), remedy="Steps count from 1")
    return first, last
