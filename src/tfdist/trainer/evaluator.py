"""Evaluate each new checkpoint of a run in the evaluator task, while the other tasks train."""

import dataclasses
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tfdist.cluster.config import ClusterConfig
from tfdist.coordination.grpc_health_probe import answers
from tfdist.coordination.wait_for_tasks import START_TIMEOUT
from tfdist.datasets.open_data import Data
from tfdist.errors import DataError, StorageError, TaskLost
from tfdist.strategies.factory import make_strategy
from tfdist.trainer.batches_of_config import Batches, open_run_data
from tfdist.trainer.config import Config
from tfdist.trainer.evaluator_notes import note_results
from tfdist.trainer.model_of_config import initial_model
from tfdist.trainer.remote_run_folder import RemoteRunFolder
from tfdist.trainer.run_folder import RunFolder
from tfdist.trainer.step_counts import total_steps
from tfdist.trainer.summaries import Summaries
from tfdist.training.checkpoints.checkpoint_files import (
    Checkpoint,
    check_variables,
    list_steps,
    open_checkpoint,
)
from tfdist.training.epoch_batches import EpochBatches
from tfdist.training.evaluate import run_tests
from tfdist.training.keras.variables_of_run import State, is_read_by_tests, variables_of_tensorflow
from tfdist.training.model_session import Session
from tfdist.training.reports.logs import as_scalars, as_text

_SECONDS_BETWEEN_LOOKS = 1.0
_SECONDS_BETWEEN_LISTINGS = 10.0  # of an object store, which charges for each
_log = logging.getLogger("tfdist")


def evaluate_checkpoints(config: Config, cluster: ClusterConfig, folder: RunFolder) -> None:
    """Evaluate each checkpoint of a run, up to that of the last step.

    Args:
        config: The config of the run.
        cluster: The cluster and this process's task.
        folder: The run's folders, on a disk that the chief writes to, or in an object store.
    """
    folder = folder.with_copy_for("evaluator")
    remote = RemoteRunFolder(folder) if folder.copies else None
    if remote is not None:
        remote.clear()
    strategy = make_strategy(cluster, **_own_options(config))
    data = open_run_data(config)
    model = initial_model(config, data, strategy)
    session = Session(model, strategy, Batches.of(config, data, model).test, steps=["test_step"])
    testing = session.testing()
    state = State(model, strategy, [*session.random_states, *variables_of_tensorflow(model)])
    mine = state.values()
    summaries = Summaries(folder.summaries, ("evaluator",))
    chief = cluster.address(cluster.lead)
    steps, may_stop = total_steps(config, data), bool(config.train.callbacks)
    for checkpoint in _new_checkpoints(folder.checkpoints, steps, chief, remote, may_stop=may_stop):
        _check_same_data(checkpoint, data)
        entries = tuple(entry for entry in checkpoint.variables if is_read_by_tests(entry[0]))
        checkpoint = dataclasses.replace(checkpoint, variables=entries)
        check_variables(checkpoint, mine)
        try:
            state.assign(checkpoint.read(checkpoint.state))
        except StorageError:
            if checkpoint.folder.exists():
                raise
            _log.warning("step %d: its checkpoint was removed before it could be read", checkpoint.step)
            continue
        results = as_scalars(run_tests(testing, model, EpochBatches(config.evaluation.batches)))
        summaries.add("evaluator", checkpoint.step, results)
        if remote is not None:
            remote.put_summaries()
        _log.info("step %d: %s", checkpoint.step, as_text(results))
        if remote is None:
            note_results(folder, checkpoint.step, results)
    summaries.close()


def _check_same_data(checkpoint: Checkpoint, data: Data) -> None:
    """Raise DataError if the run trains on other data than this task has."""
    fingerprint = checkpoint.facts.get("trained", {}).get("data.fingerprint", data.fingerprint)
    if fingerprint != data.fingerprint:
        trained = f"'{checkpoint.facts['trained'].get('data.name')}' {fingerprint}"
        problem = f"of the evaluator differs from that of the run, {trained}; here it is {data.described}"
        remedy = "Copy the same files to its machine, or set TFDIST_CACHE_DIR to a folder that both share"
        raise DataError("the data set", problem, remedy=remedy)


def _new_checkpoints(
    folder: Path, total: int, chief: str, remote: RemoteRunFolder | None = None, *, may_stop: bool = False
) -> Iterator[Checkpoint]:
    """Yield the checkpoints in their order, when they appear, up to that of the last step.

    If callbacks `may_stop` the training, the one that says that they have is the last.
    """
    seen, damaged, sign_of_life = -1, set[int](), time.monotonic()
    while seen < total:
        if remote is not None:
            remote.fetch_after(seen)
        checkpoint = _next_whole(folder, seen, damaged)
        if checkpoint is not None:
            seen = checkpoint.step
            yield checkpoint
            if may_stop and checkpoint.facts.get("is_stopped", False):
                return
        if checkpoint is not None or answers(chief):
            sign_of_life = time.monotonic()
        elif time.monotonic() - sign_of_life > START_TIMEOUT:
            problem = f"has been gone for {START_TIMEOUT:g} s, and there is no checkpoint of step {total}"
            remedy = f"Start it again, or see its log; is {folder} on a disk that both can see?"
            raise TaskLost(f"chief at {chief}", problem, remedy=remedy)
        if checkpoint is None:
            time.sleep(_SECONDS_BETWEEN_LOOKS if remote is None else _SECONDS_BETWEEN_LISTINGS)


def _next_whole(folder: Path, seen: int, damaged: set[int]) -> Checkpoint | None:
    """Return the next complete checkpoint, if any; the run may write a damaged one again."""
    for step in list_steps(folder):
        if step <= seen:
            continue
        opened = open_checkpoint(folder / str(step))
        if isinstance(opened, Checkpoint):
            return opened
        if step not in damaged:
            _log.warning("step %d: %s", step, opened)
            damaged.add(step)
    return None


def _own_options(config: Config) -> dict[str, Any]:
    """Return the options of the cluster's strategy that apply to one process."""
    names = ("device", "logical_devices", "precision", "memory_growth")
    return {name: getattr(config.strategy, name) for name in names}
