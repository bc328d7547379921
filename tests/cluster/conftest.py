"""Start one process per task of a cluster, wait for all of them, and show where each stands if one hangs."""

import functools
import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest
import task as one_task

from commands import SHOW_STACKS, Forked
from tfdist.cluster.config import ClusterConfig, Task
from tfdist.transport.authentication import SECRET

FOR_ALL = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
LONGEST = 800  # seconds; what takes longer hangs, on a slow machine too
_BEGUN_FIRST = (
    "one_device",
    "parameter_server_sync",
)  # what others are compared with, and what takes longest
SECONDS_TO_SHOW_STACKS = 5


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
        logs = {name: (self.folder / f"{name}.log").read_text(errors="replace") for name in self.processes}
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

    def _show_stacks(self, hanging: list[str]) -> None:
        """Write the stack of every thread of these tasks to their logs, through faulthandler."""
        for name in hanging:
            os.kill(self.processes[name].pid, SHOW_STACKS)
        end = time.monotonic() + SECONDS_TO_SHOW_STACKS
        logs = [self.folder / f"{name}.log" for name in hanging]
        while time.monotonic() < end and not all(
            "(most recent call first)" in log.read_text() for log in logs
        ):
            time.sleep(0.05)
        time.sleep(0.1)  # for the threads after the first

    def __enter__(self) -> "Running":
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.processes.values():
            process.kill()


@pytest.hookimpl(trylast=True)  # when those that are not asked for have gone
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with one test of each shared cluster, and end with the others of it: no process waits for a cluster."""
    firsts: dict[object, pytest.Item] = {}
    for item in items:
        if (cluster := _shared_cluster(item)) is not None:
            firsts.setdefault(cluster, item)
    begun = sorted(firsts.values(), key=lambda item: _names(item) not in _BEGUN_FIRST)
    places = {id(item): 0 for item in begun}
    rest = [item for item in items if id(item) not in places]
    items[:] = [*begun, *sorted(rest, key=lambda item: _shared_cluster(item) is not None)]


def _shared_cluster(item: pytest.Item) -> object:
    """Return what names the cluster that a test shares with others; None if it shares none."""
    fixtures = getattr(item, "fixturenames", ())
    shared = [name for name in ("finished", "results") if name in fixtures and _names(item) is not None]
    return (shared[0], _names(item)) if shared else None


@pytest.fixture(scope="session", autouse=True)
def _forked(forking: None) -> None:
    """Start the process that the tasks are forked from."""


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


def wait_for(path: Path) -> None:
    """Wait until a task has written a file."""
    end = time.monotonic() + LONGEST
    while not path.exists():
        assert time.monotonic() < end, f"no task wrote {path.name} within {LONGEST} s"
        time.sleep(0.05)


SETUPS: dict[str, dict[str, Any]] = {
    "one_device": {},
    "mirrored": {"options": {"logical_devices": 2}},
    "multi_worker_mirrored": {"workers": 2},
    "parameter_server": {"workers": 2, "ps": 1},
    "parameter_server_sync": {"workers": 2, "ps": 2, "options": {"min_shard_bytes": 2000}},
}
AGAIN = [pytest.mark.slow, pytest.mark.again]
IN_STEP = ["one_device", "mirrored", "multi_worker_mirrored", "parameter_server_sync"]
ANYWHERE = [
    "smoke",
    "counting",
    "from_function",
    "callback_cases.writing",
    "shared_cases.scaled",
    "random_cases.draws",
    "model_cases.looked_up",
    "model_cases.on_sequences",
    "model_cases.with_options",
    "model_cases.shuffled",
    "metric_cases.counted",
    "ported_cases.ported",
    "custom_step_cases.trained",
    "batch_cases.one_at_a_time",
    "again_cases.repeated",
    "chief_data_cases.read_once",
    "traffic_cases.trained",
]
IN_STEP_ONLY = [
    "shared_cases.at_once",
    "equivalent_sgd",
    "equivalent_adam",
    "equivalent_clipped",
    "equivalent_legacy",
    "custom_loop",
    "model_cases.trained",
    "model_cases.summed",
    "model_cases.by_rows",
]

ONLY_ON = {
    "mirrored": ["own_cases.steps", "own_cases.steps_by_keras", "custom_step_cases.refused"],
    "multi_worker_mirrored": [
        "callback_cases.stopping",
        "order_cases.drawn",
        "call_cases.apart",
        "model_cases.written",
        "model_cases.made",
        "call_cases.agreed",
    ],
    "parameter_server": [
        "model_cases.recovered",
        "model_cases.written",
        "own_cases.refused",
        "traffic_cases.evaluated",
        "custom_step_cases.refused",
    ],
    "parameter_server_sync": [
        "own_cases.refused",
        "shard_cases.trained",
        "model_cases.written",
        "callback_cases.setting",
    ],
}


def on(strategies: Iterable[str], *, again: Iterable[str]) -> list[Any]:
    """Return strategies to run a test under, of which some only do again what others prove."""
    return [pytest.param(each, marks=AGAIN) if each in again else each for each in strategies]


@pytest.fixture(scope="session")
def cluster_once(once: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Finished]:
    """Return a function that runs a cluster once for all processes of the tests, by a name of its own."""

    def run(name: str, strategy: str, cases: list[str], **shape: Any) -> Finished:
        folder = tmp_path_factory.mktemp(name)
        return Finished(**once(name, lambda: asdict(run_cluster(folder, strategy, cases, **shape))))

    return run


@pytest.fixture(scope="session")
def finished(
    request: pytest.FixtureRequest, cluster_once: Callable[..., Finished]
) -> Callable[[str], Finished]:
    """Return what gives the results of a strategy's cases, those that the tests' files name; they share one cluster."""
    items = [item for item in request.session.items if "finished" in getattr(item, "fixturenames", ())]

    @functools.cache
    def result(strategy: str) -> Finished:
        asked = {case for item in items if _may_ask(item, strategy) for case in item.module.CASES}
        cases = [*ANYWHERE, *(IN_STEP_ONLY if strategy in IN_STEP else []), *ONLY_ON.get(strategy, [])]
        return cluster_once(strategy, strategy, [case for case in cases if case in asked], **SETUPS[strategy])

    return result


def _names(item: pytest.Item) -> str | None:
    return item.callspec.params.get("strategy") if hasattr(item, "callspec") else None


def _may_ask(item: pytest.Item, strategy: str) -> bool:
    """Return whether a test may look at a strategy's results: its own, those that it compares with, any if it names none."""
    named = _names(item)
    return named is None or strategy in (named, getattr(item.module, "COMPARED_WITH", named))


@pytest.fixture(scope="session")
def keras_itself(cluster_once: Callable[..., Finished]) -> dict[str, Any]:
    """Return what Keras's own fit makes of the equivalence cases, in one process without a strategy."""
    return cluster_once("keras", "one_device", ["keras_itself"]).chief["keras_itself"]
