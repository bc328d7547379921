"""Start one process per task of a cluster, wait for all of them, and show where each stands if one hangs."""

import json
import os
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import task as one_task

from again import AGAIN
from commands import SHOW_STACKS, Forked
from tfdist.cluster.config import ClusterConfig, Task
from tfdist.transport.authentication import SECRET

FOR_ALL = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
LONGEST = 800  # seconds; what takes longer hangs, on a slow machine too
SECONDS_TO_SHOW_STACKS = 60


@dataclass
class Finished:
    """What became of a cluster's processes."""

    exit_codes: dict[str, int | None]
    results: dict[str, dict[str, Any]]
    logs: dict[str, str]

    @property
    def chief(self) -> dict[str, Any]:
        """What the chief found, or worker 0 where there is none, or the only process."""
        return next(self.results[name] for name in ("chief:0", "worker:0", "alone") if name in self.results)


@dataclass
class Running:
    """A cluster's processes while they run; every one is ended with the block."""

    folder: Path
    cluster: ClusterConfig
    processes: dict[str, Forked] = field(default_factory=dict)

    def start(self, task: Task | None, order: dict[str, Any]) -> None:
        name = "alone" if task is None else str(task)
        environ = {**os.environ, **FOR_ALL}
        environ.pop("TF_CONFIG", None)
        environ.setdefault(SECRET, "a secret of these tests alone")  # as the launcher's tasks have one
        if task is not None:
            environ["TF_CONFIG"] = self.cluster.tf_config_json(*task)
        result, log = (self.folder / f"{name}.{kind}" for kind in ("json", "log"))
        log.touch()
        self.processes[name] = Forked(one_task.main, order, result, environ=environ, output=log)

    def wait(self, limit: float, *, failures_expected: bool = False) -> Finished:
        end = time.monotonic() + limit
        while time.monotonic() < end and any(each.poll() is None for each in self.processes.values()):
            if not failures_expected and any(
                each.poll() not in (None, 0) for each in self.processes.values()
            ):
                end = min(end, time.monotonic() + 20)  # the first failure is the root cause: do not wait long
            time.sleep(0.05)
        hanging = [name for name, each in self.processes.items() if each.poll() is None]
        self._show_stacks(hanging)
        codes = {name: each.poll() for name, each in self.processes.items()}
        logs = {name: self.log(name) for name in self.processes}
        if hanging or (any(codes.values()) and not failures_expected):
            shown = "\n".join(
                f"--- {name}, {'still running' if name in hanging else f'exit {code}'} ---\n{logs[name][-6000:]}"
                for name, code in codes.items()
            )
            pytest.fail(
                f"still running after {limit:g} s: {hanging}; exit codes: {codes}\n{shown}", pytrace=False
            )
        found = {name: self.folder / f"{name}.json" for name in self.processes}
        results = {name: json.loads(path.read_text()) for name, path in found.items() if path.exists()}
        return Finished(codes, results, logs)

    def wait_for(self, name: str, *, ended: Collection[str] = ()) -> None:
        """Wait until a task has written a file; only the tasks in `ended` may end before."""
        self.until((self.folder / name).exists, f"a task writes {name}", ended=ended)

    def until(self, condition: Callable[[], bool], what: str, *, ended: Collection[str] = ()) -> None:
        """Wait until a condition is met; fail at once where a task ends before, but for those in `ended`."""
        end = time.monotonic() + LONGEST
        while True:
            over = {name: each.poll() for name, each in self.processes.items() if name not in ended}
            over = {name: code for name, code in over.items() if code is not None}
            if condition():  # looked at after the tasks: one may end as soon as it is met
                return
            if over or time.monotonic() > end:
                logs = "\n".join(f"--- {name} ---\n{self.log(name)[-6000:]}" for name in self.processes)
                pytest.fail(f"waiting until {what}; exit codes: {over}\n{logs}", pytrace=False)
            time.sleep(0.05)

    def until_in(self, name: str, function: str) -> None:
        """Wait until a task is in a function."""

        def is_there() -> bool:
            self._show_stacks([name])
            return f" in {function}\n" in self.log(name)

        self.until(is_there, f"{name} is in {function}")

    def log(self, name: str) -> str:
        """Return what a task has printed up to now."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def _show_stacks(self, hanging: list[str]) -> None:
        """Write the stack of every thread of these tasks to their logs, through faulthandler."""
        shown = {name: self._stacks_shown(name) for name in hanging}
        for name in hanging:
            os.kill(self.processes[name].pid, SHOW_STACKS)
        end = time.monotonic() + SECONDS_TO_SHOW_STACKS
        while time.monotonic() < end and any(self._stacks_shown(name) == shown[name] for name in hanging):
            time.sleep(0.05)

    def _stacks_shown(self, name: str) -> int:
        """Return how often a task has shown its stacks.

        The main thread is shown last, from its innermost function to the one that every task begins with.
        """
        return self.log(name).count("in _become")

    def __enter__(self) -> "Running":
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.processes.values():
            process.kill()


def run_cluster(
    folder: Path,
    strategy: str,
    cases: list[str],
    *,
    options: dict[str, Any] | None = None,
    **shape: int,
) -> Finished:
    """Run the cases under a strategy, in a cluster of the given shape, each process with the same script."""
    folder.mkdir(parents=True, exist_ok=True)
    cluster = ClusterConfig.local(**shape) if shape else ClusterConfig()
    order = {"strategy": strategy, "options": options or {}, "cases": cases, "folder": str(folder)}
    with Running(folder, cluster) as running:
        for task in cluster.tasks() or (None,):
            running.start(task, order)
        return running.wait(LONGEST)


SETUPS: dict[str, dict[str, Any]] = {
    "one_device": {},
    "mirrored": {"options": {"logical_devices": 2}},
    "multi_worker_mirrored": {"workers": 2},
    "parameter_server": {"workers": 2, "ps": 1},
    "parameter_server_sync": {"workers": 2, "ps": 2, "options": {"min_shard_bytes": 2000}},
}
IN_STEP = ["one_device", "mirrored", "multi_worker_mirrored", "parameter_server_sync"]


def on(strategies: Iterable[str], *, again: Iterable[str]) -> list[Any]:
    """Return strategies to run a test under, of which some only do again what others prove."""
    return [pytest.param(each, marks=AGAIN) if each in again else each for each in strategies]
