"""Evaluate each new checkpoint of a run, beside the training: what the cluster's evaluator does."""

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tfdist.checkpoint import Checkpoint, check_variables, list_steps, open_checkpoint
from tfdist.cluster import ClusterConfig
from tfdist.config import Config
from tfdist.data import open_data
from tfdist.errors import StorageError, TaskLost
from tfdist.loop import Session, State, run_tests
from tfdist.probing import answers
from tfdist.recipe import compiled_model, test_batches, total_steps
from tfdist.strategy import make_strategy
from tfdist.summaries import Summaries

__all__ = ["evaluate_checkpoints"]

_SECONDS_BETWEEN_LOOKS = 1.0
_PATIENCE_SECONDS = 600
_log = logging.getLogger("tfdist")


def evaluate_checkpoints(config: Config, cluster: ClusterConfig, folder: Path) -> None:
    """Evaluate each checkpoint of a run, until that of its last step.

    Args:
        config: What is trained.
        cluster: The cluster and this process's task.
        folder: The run's folder, on a disk that the chief writes to.
    """
    strategy = make_strategy(cluster, **_own_options(config))
    data = open_data(**config.data.wanted())
    with strategy.scope():
        model = compiled_model(config, data)
    session = Session(model, strategy, lambda context: test_batches(context, data, config))
    testing = session.testing()
    state = State(model, strategy, session.random_states)
    mine = state.values()
    summaries = Summaries(folder / "summaries", ("evaluator",))
    chief = cluster.address(cluster.lead)
    for found in _new_checkpoints(folder / "checkpoints", total_steps(config, data), chief):
        check_variables(found, mine)
        try:
            state.assign(found.read())
        except StorageError:
            if found.folder.exists():
                raise
            _log.warning("step %d: its checkpoint was removed before it could be read", found.step)
            continue
        results = run_tests(session, testing, model, config.evaluation.batches)
        summaries.add("evaluator", found.step, results)
        told = ", ".join(f"{name} {value:.4f}" for name, value in results.items())
        _log.info("step %d: %s", found.step, told)
    summaries.close()


def _new_checkpoints(folder: Path, total: int, chief: str) -> Iterator[Checkpoint]:
    """Give the checkpoints in their order, as they come, until the last."""
    seen, damaged, sign_of_life = -1, set[int](), time.monotonic()
    while seen < total:
        found = _next_whole(folder, seen, damaged)
        if found is not None:
            seen = found.step
            yield found
        if found is not None or answers(chief):
            sign_of_life = time.monotonic()
        elif time.monotonic() - sign_of_life > _PATIENCE_SECONDS:
            problem = f"has been gone for {_PATIENCE_SECONDS} s, and there is no checkpoint of step {total}"
            remedy = f"Start it again, or see its log; is {folder} on a disk that both can see?"
            raise TaskLost(f"chief at {chief}", problem, remedy=remedy)
        if found is None:
            time.sleep(_SECONDS_BETWEEN_LOOKS)


def _next_whole(folder: Path, seen: int, damaged: set[int]) -> Checkpoint | None:
    """Find the next whole checkpoint. A damaged one may come anew: the run goes on from one before."""
    for step in list_steps(folder):
        if step <= seen:
            continue
        found = open_checkpoint(folder / str(step))
        if isinstance(found, Checkpoint):
            return found
        if step not in damaged:
            _log.warning("step %d: %s", step, found)
            damaged.add(step)
    return None


def _own_options(config: Config) -> dict[str, Any]:
    """Give the options of the cluster's strategy that one process has a use for."""
    names = ("device", "logical_devices", "precision", "memory_growth")
    return {name: value for name in names if (value := getattr(config.strategy, name)) is not None}
