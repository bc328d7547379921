"""Lose a worker, and a ps: with tfdist, and with tf_keras's BackupAndRestore as TensorFlow's guides write it.

    python benchmarks/recovery.py [--pairs 5]

Both sides train the same model on the same data with the same tasks and threads, and save as often. A task
is killed (SIGKILL) some steps after a checkpoint; what is measured is how long it takes until there is a
newer one. tf_keras has nobody who starts tasks again, so a supervisor does that here, as a shell script
would: a worker beside a ps is started again alone; when another task fails, all are ended and started anew.
The two sides take turns. tf_keras has to be installed.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from results import machine, put, spread, table

from tfdist.cluster.config import ClusterConfig
from tfdist.launcher.onednn_variables import enable_onednn

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "faults"))

from training import Training

PEERS = Path(__file__).parent / "peers"
_EVERY, _STEPS, _BATCH = 100, 100_000, 64
_STEPS_IN = 0.2  # seconds after a checkpoint
_LIMIT = 180.0
_BETWEEN_LOOKS = 0.005


class Loss(NamedTuple):
    """Describe which task of which cluster is lost."""

    what: str
    strategy: str
    shape: dict[str, Any]
    victim: str


LOSSES = (
    Loss("a worker", "multi_worker_mirrored", {"workers": 2}, "worker:1"),
    Loss("a worker", "parameter_server", {"workers": 2, "ps": 1}, "worker:1"),
    Loss("the ps", "parameter_server", {"workers": 2, "ps": 1}, "ps:0"),
)


def main() -> None:
    """Read the flags, measure in turns, and put the table into the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=5)
    pairs = parser.parse_args().pairs
    enable_onednn()  # for all sides: else the ratios would be those of oneDNN
    rows = []
    with tempfile.TemporaryDirectory(prefix="recovery-") as name:
        folder = Path(name)
        data = data_of(folder)
        for loss in LOSSES:
            ours, theirs = [], []
            for number in range(pairs):
                place = folder / f"{loss.strategy}-{loss.victim}-{number}"
                ours.append(_lost_by_tfdist(loss, data, place / "tfdist", folder / "cache"))
                theirs.append(_lost_by_tf_keras(loss, data, place / "tf_keras"))
                print(f"{loss.what} of {loss.strategy}: {ours[-1]}, {theirs[-1]}", flush=True)
            rows.append(_row(loss, ours, theirs))
    head = (
        f"Median and range of {pairs} pairs, taken in turns; {machine('tf_keras')}. A checkpoint every"
        f" {_EVERY} steps."
    )
    columns = ("lost", "strategy", "tfdist", "tf_keras, BackupAndRestore", "tf_keras / tfdist")
    put("recovery", head, table(columns, rows))


def data_of(folder: Path) -> Path:
    """Write random pictures of ten classes, and return their file."""
    chance = np.random.default_rng(0)
    file = folder / "data.npz"
    splits = {"train": 10_000, "test": 100}
    arrays: dict[str, Any] = {}
    for name, count in splits.items():
        arrays[f"x_{name}"] = chance.integers(0, 256, (count, 28, 28, 1), np.uint8)
        arrays[f"y_{name}"] = chance.integers(0, 10, count).astype(np.int64)
    np.savez(file, **arrays)
    return file


def training_config(strategy: str, cluster: dict[str, int], data: Path) -> dict[str, Any]:
    """Return the config of a long training of the linear model."""
    return {
        "cluster": cluster,
        "strategy": {"name": strategy},
        "data": {"name": str(data), "batch_size": _BATCH},
        "model": {"name": "linear:build"},
        "train": {"steps": _STEPS},
        "evaluation": {"every": _STEPS},
        "checkpoint": {"every": _EVERY},
        "launch": {"threads": 1},
    }


def _lost_by_tfdist(loss: Loss, data: Path, folder: Path, cache: Path) -> float | None:
    cluster = {"worker": loss.shape["workers"]} | ({"chief": 1, "ps": 1} if "ps" in loss.shape else {})
    config = training_config(loss.strategy, cluster, data)
    with Training(folder, config, str(cache)) as training:
        training.environ["PYTHONPATH"] += f"{os.pathsep}{PEERS}"
        training.start()
        return _measured(training.newest, lambda: training.tasks()[loss.victim], lambda: None)


def _lost_by_tf_keras(loss: Loss, data: Path, folder: Path) -> float | None:
    backups = folder / "backups"
    words = [str(PEERS / "backup_and_restore.py"), data, backups, _STEPS, _EVERY, _BATCH]
    folder.mkdir(parents=True)

    def newest() -> int:
        return max((int(each.stem[5:]) for each in (backups / "chief").glob("ckpt-*.index")), default=0)

    with _Supervisor(ClusterConfig.local(**loss.shape), [*map(str, words)], folder / "log.txt") as supervisor:
        return _measured(newest, lambda: supervisor.tasks[loss.victim].pid, supervisor.look)


class _Supervisor:
    """Start the tasks of a cluster, and start again what fails."""

    def __init__(self, cluster: ClusterConfig, words: list[str], log: Path) -> None:
        self._cluster, self._words, self._log = cluster, words, log
        self.tasks: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "_Supervisor":
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()

    def look(self) -> None:
        """Start all anew where one has failed; alone a worker beside a ps, which the others do without."""
        failed = [name for name, each in self.tasks.items() if each.poll()]
        if failed and all(name.startswith("worker") and self._cluster.ps for name in failed):
            self._start(failed)
        elif failed:
            self._kill()
            self._start()

    def _start(self, names: Collection[str] = ()) -> None:
        threads = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "8", "OMP_NUM_THREADS": "1"}
        with self._log.open("ab") as log:
            for task in self._cluster.tasks():
                if names and str(task) not in names:
                    continue
                environ = {**os.environ, **threads, "TF_CONFIG": self._cluster.tf_config_json(*task)}
                environ["CUDA_VISIBLE_DEVICES"] = "-1"
                self.tasks[str(task)] = subprocess.Popen(
                    [sys.executable, *self._words], env=environ, stdout=log, stderr=log
                )

    def _kill(self) -> None:
        for each in self.tasks.values():
            each.kill()
        for each in self.tasks.values():
            each.wait()


def _measured(newest: Callable[[], int], victim: Callable[[], int], look: Callable[[], None]) -> float | None:
    """Kill a task some steps after a checkpoint; give the seconds to the next, or nothing where none came."""
    begun = newest()
    for _ in _until(lambda: newest() > begun, "the first checkpoint"):
        look()
    time.sleep(_STEPS_IN)
    before, killed = newest(), time.monotonic()
    os.kill(victim(), signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        for _ in _until(lambda: newest() > before, "the next checkpoint"):
            look()
        return time.monotonic() - killed
    return None


def _until(condition: Callable[[], bool], what: str) -> Iterator[None]:
    give_up = time.monotonic() + _LIMIT
    while not condition():
        if time.monotonic() > give_up:
            raise TimeoutError(f"{what} did not come within {_LIMIT:g} s")
        yield
        time.sleep(_BETWEEN_LOOKS)


def _row(loss: Loss, ours: list[float | None], theirs: list[float | None]) -> list[str]:
    both = [(our, their) for our, their in zip(ours, theirs, strict=True) if our and their]
    ratio = spread([their / our for our, their in both], ".1f") if both else ""
    return [loss.what, f"`{loss.strategy}`", _recovered(ours), _recovered(theirs), ratio]


def _recovered(seconds: list[float | None]) -> str:
    known = [each for each in seconds if each is not None]
    never = (
        f"{len(seconds) - len(known)} of {len(seconds)} not within {_LIMIT:g} s" if None in seconds else ""
    )
    told = spread(known, ".1f", " s") if known else ""
    return "; ".join(filter(None, [told, never]))


if __name__ == "__main__":
    main()
