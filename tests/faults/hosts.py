"""Start the tasks of a cluster by hand on two hosts, which a wire joins."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from setups import SETUPS, SILENCE, config
from training import Training
from wire import HOSTS, Wire

__all__ = ["CLUSTERS", "Tasks", "begun_with"]

_NEAR, _FAR = HOSTS
CLUSTERS = {
    "multi_worker_mirrored": {"worker": [f"{_NEAR}:2222", f"{_FAR}:2222"]},
    "parameter_server": {
        "chief": [f"{_NEAR}:2222"],
        "ps": [f"{_NEAR}:2223"],
        "worker": [f"{_NEAR}:2224", f"{_FAR}:2224"],
    },
    "parameter_server_sync": {
        "chief": [f"{_NEAR}:2222"],
        "ps": [f"{_NEAR}:2223", f"{_FAR}:2223"],
        "worker": [f"{_NEAR}:2224", f"{_FAR}:2224"],
    },
}
# The tasks at the near end, of which the first leads, and those at the far one.
_TASKS = {
    "multi_worker_mirrored": (("worker:0",), ("worker:1",)),
    "parameter_server": (("chief:0", "worker:0", "ps:0"), ("worker:1",)),
    "parameter_server_sync": (("chief:0", "worker:0", "ps:0"), ("ps:1", "worker:1")),
}


class Tasks(dict[str, Training]):
    """The tasks of a cluster by name; the first one leads the others.

    Attributes:
        alone: Those that end if they are cut off, while the others continue.
    """

    alone: tuple[str, ...] = ()

    @property
    def lead(self) -> Training:
        return next(iter(self.values()))

    def start(self, *names: str) -> None:
        """Start these tasks, or all."""
        for name in names or self:
            self[name].start()

    def ends(self, *names: str) -> dict[str, int]:
        """Return the exit statuses of these tasks, or of all."""
        return {name: self[name].end() for name in names or self}

    def reach(self, step: int) -> None:
        """Wait until the lead has a checkpoint of a step, or a later one."""

        def is_there() -> bool:
            assert self.lead.status() is None, self.told()
            return self.lead.newest() >= step

        self.lead.until(is_there, f"step {step} is saved")

    def told(self) -> str:
        return "\n".join(task.said() for task in self.values())[-8000:]


@contextlib.contextmanager
def begun_with(
    strategy: str, folder: Path, cache: str, *, steps: int = 200, is_patient: bool = False, **changes: Any
) -> Iterator[tuple[Wire, Tasks]]:
    """Yield a wire, and the tasks of a strategy at its ends, of which none is started.

    With `is_patient`, a link may be cut for a third of SILENCE under each strategy: an asynchronous worker
    gives up five seconds before its chief does, and TCP sends a lost packet again after one, three and seven.
    """
    if is_patient and strategy == "parameter_server":
        changes["watch"] = {"heartbeat_timeout": 2 * SILENCE}
    run = config(strategy, steps, **{"cluster": CLUSTERS[strategy], "launch": {}, **changes})
    with Wire() as wire, contextlib.ExitStack() as stack:
        tasks = Tasks()
        tasks.alone = SETUPS[strategy].alone[1:] if strategy == "parameter_server" else ()
        for side, names in enumerate(_TASKS[strategy]):
            for name in names:
                training = Training(folder, run, cache, task=name, prefix=wire.inside(side))
                tasks[name] = stack.enter_context(training)
                tasks[name].environ["TFDIST_SECRET"] = "what all of them know"
        yield wire, tasks
