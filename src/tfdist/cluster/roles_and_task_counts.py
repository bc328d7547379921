"""Name the roles of tasks, and read how many tasks of each role a user wants."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from tfdist.errors import ConfigError, shown

ROLES = ("chief", "worker", "ps", "evaluator")
TASK_COUNTS = "TFDIST_ROLES"  # such as chief=1,ps=1,worker=2: for scripts, which have no config file
DEFAULT_PORT = 2222


class TaskCounts(NamedTuple):
    """The number of tasks of each role, and the place that states it."""

    by_role: Mapping[str, int]
    said_by: str

    def __str__(self) -> str:
        return " + ".join(f"{count} {role}" for role, count in self.by_role.items() if count) or "no tasks"


def stated_task_counts(environ: Mapping[str, str]) -> TaskCounts | None:
    """Return the counts that TFDIST_ROLES states, if it is set."""
    if not (text := environ.get(TASK_COUNTS, "").strip()):
        return None
    pairs = [re.fullmatch(r"([a-z_][a-z0-9_]*)=([0-9]{1,5})", part.strip()) for part in text.split(",")]
    counts = {pair[1]: int(pair[2]) for pair in pairs if pair}
    if len(counts) < len(pairs):
        expected = "each role once with its number of tasks, such as chief=1,ps=1,worker=2"
        raise ConfigError(TASK_COUNTS, expected=expected, received=shown(text))
    return TaskCounts(counts, TASK_COUNTS)
