"""Share clusters among the tests, and begin with what takes longest."""

import functools
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest
from clusters import IN_STEP, SETUPS, Finished, run_cluster

_BEGUN_FIRST = (
    "one_device",
    "parameter_server_sync",
)  # what others are compared with, and what takes longest


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
        "callback_cases.reading",
        "callback_cases.loading",
        "order_cases.drawn",
        "call_cases.apart",
        "model_cases.written",
        "model_cases.made",
        "call_cases.agreed",
        "checkpointed",
        "gathered",
        "option_cases.seen",
    ],
    "parameter_server": [
        "model_cases.recovered",
        "model_cases.written",
        "own_cases.refused",
        "traffic_cases.evaluated",
        "custom_step_cases.refused",
        "pass_cases.passes",
        "pass_cases.tested",
    ],
    "parameter_server_sync": [
        "own_cases.refused",
        "shard_cases.trained",
        "model_cases.written",
        "callback_cases.setting",
    ],
}


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
