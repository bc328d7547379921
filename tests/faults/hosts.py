"""Start the tasks of a cluster by hand on two hosts, which a wire joins."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from training import Training
from wire import Wire

__all__ = ["Tasks", "begun"]


class Tasks(dict[str, Training]):
    """The tasks of a cluster by name; the first one leads the others."""

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
def begun(
    folder: Path, run: dict[str, Any], cache: str, sides: Mapping[str, int]
) -> Iterator[tuple[Wire, Tasks]]:
    """Yield a wire, and the tasks at its ends, of which none is started."""
    with Wire() as wire, contextlib.ExitStack() as stack:
        tasks = Tasks()
        for name, side in sides.items():
            training = Training(folder, run, cache, task=name, prefix=wire.inside(side))
            tasks[name] = stack.enter_context(training)
            tasks[name].environ["TFDIST_SECRET"] = "what all of them know"
        yield wire, tasks
