"""Prepare the config's data on the workers beside a ps, where they do not share the chief's folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tfdist.cluster.config import ClusterConfig, Task
from tfdist.coordination.calls_between_tasks import call, call_each, register
from tfdist.datasets.open_data import Data, open_data
from tfdist.errors import DataError, TfdistError

_NAME = "prepare_data"
_SECONDS_TO_PREPARE = 3600.0  # the longest wait; it may be a download


def offer_to_prepare_data(wanted: Mapping[str, Any]) -> None:
    """Register the preparation of the data, which the chief then calls on this worker."""

    def prepare(chiefs_path: bytes) -> Any:
        path = Path(chiefs_path.decode())
        if path.exists():  # in a folder that both share, or prepared before
            return np.array(b"")
        try:
            own = Path(open_data(**wanted).split("train").images)
        except TfdistError as error:
            return np.array(str(error).encode())
        return np.array(b"" if path.exists() else f"it prepared {own}".encode())

    register(_NAME, prepare)


def prepare_data_on_workers(cluster: ClusterConfig, data: Data) -> None:
    """Wait until every worker beside a ps has the prepared data at the path that the chief uses.

    Raises:
        DataError: A worker does not have them, and cannot prepare them there.
    """
    if not cluster.ps:
        return
    path = data.split("train").images

    def prepare(task: Task) -> str:
        import tensorflow as tf

        reason: bytes = call(task, _NAME, tf.string, path)
        return reason.decode()

    workers = [task for task in cluster.tasks() if task.type == "worker"]
    for task, reason in call_each(prepare, workers, _SECONDS_TO_PREPARE).items():
        if reason:
            problem = f"is missing on {cluster.with_address(task)}: {reason}"
            remedy = "Set TFDIST_CACHE_DIR to the same path on all machines, or to a folder that they share"
            raise DataError(path, problem, remedy=remedy)
