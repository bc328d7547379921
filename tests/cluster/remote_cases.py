"""What the chief of a test's cluster computes on the other tasks, and what comes of it."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.errors import ConfigError, TaskLost
from tfdist.remote.connect_map_reduce import Remote

SLICES = [
    np.arange(start, start + size, dtype="float64") for start, size in ((0, 1), (1, 5), (6, 2), (8, 13))
]


def pid_there() -> tf.Tensor:
    """Return the id of the process that runs this operation."""
    return tf.strings.to_number(tf.strings.split(tf.io.read_file("/proc/self/stat"), " ")[0], tf.int64)


def _error(call: Any) -> str:
    try:
        call()
    except (ConfigError, TaskLost, tf.errors.InvalidArgumentError, KeyError) as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def placed(remote: Remote, folder: Path) -> dict[str, Any]:
    """Each block runs on its task; variables stay there, and layers of one network may be on several."""
    pids = {}
    for task in remote.tasks:
        with remote.device(*task):
            pids[str(task)] = int(pid_there())
    with remote.device("reader"):
        variable = tf.Variable([1.0, 2.0])
    with remote.device("worker", 1, "cpu"):
        doubled = 2 * variable
    return {
        "own": os.getpid(),
        "pids": pids,
        "devices": [variable.device, doubled.device],
        "doubled": doubled.numpy().tolist(),
        "unknown": _error(lambda: remote.device("worker", 2)),
        "no_gpu": _error(lambda: remote.device("worker", 1, "gpu")),
        "no_kind": _error(lambda: remote.device("worker", 1, "cup")),
    }


def mapped(remote: Remote, folder: Path) -> dict[str, Any]:
    """Slices of unequal size: the mean of their means, weighted, is that of the whole."""
    weight = tf.Variable(3.0, dtype=tf.float64)

    @tf.function
    def gradient(x: tf.Tensor) -> dict[str, tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((weight * x - tf.exp(-x)) ** 2)
        return {"loss": loss, "gradient": tape.gradient(loss, weight), "pid": pid_there()}

    parts = remote.map(gradient, SLICES)
    whole = gradient(tf.concat(SLICES, axis=0))
    mean = remote.reduce("mean", parts)
    by_worker = remote.map(gradient, SLICES, job="worker")
    pairs = remote.map(lambda pair: pair[0], [(np.zeros(2), np.zeros(3))])
    return {
        "sizes": parts.sizes,
        "pids": sorted({int(part["pid"]) for part in parts}),
        "worker_pids": sorted({int(part["pid"]) for part in by_worker}),
        "mean": [float(mean["loss"]), float(mean["gradient"])],
        "plain": float(remote.reduce("mean", [part["loss"] for part in parts], sizes=[1] * 4)),
        "losses": [float(part["loss"]) for part in parts],
        "whole": [float(whole["loss"]), float(whole["gradient"])],
        "joined": remote.reduce("concat", remote.map(tf.identity, SLICES)).numpy().tolist(),
        "sum": int(remote.reduce("sum", [1, 2, 3])),
        "least": int(remote.reduce("min", [3, 1, 2])),
        "no_shape": _error(lambda: remote.reduce("sum", [[1.0], [1.0, 2.0]])),
        "no_sizes": _error(lambda: remote.reduce("mean", [1.0, 2.0])),
        "no_size": _error(lambda: remote.reduce("mean", pairs)),
        "of_whole_numbers": float(remote.reduce("mean", [1, 2], sizes=[1, 1])),
    }


def failing(remote: Remote, folder: Path) -> dict[str, Any]:
    """A mistake in the function is raised as it is, and costs no task."""
    before = remote.tasks

    def python(x: tf.Tensor) -> Any:
        return {}["no such key"]

    @tf.function
    def in_graph(x: tf.Tensor) -> tf.Tensor:
        tf.debugging.assert_less(x, tf.zeros_like(x), "x is not below 0")
        return x

    errors = [_error(lambda fn=fn: remote.map(fn, SLICES)) for fn in (python, in_graph)]
    return {"errors": errors, "all_there": remote.tasks == before}


def _losing(remote: Remote, name: str, how: int) -> dict[str, Any]:
    pids = {}
    for task in remote.tasks:
        with remote.device(*task):
            pids[str(task)] = int(pid_there())
    to_lose = {pids[name]}
    square = tf.function(lambda x: x * x)

    def cut_off(x: tf.Tensor) -> tf.Tensor:
        pid = int(pid_there())
        if pid in to_lose:
            to_lose.remove(pid)
            os.kill(pid, how)
        return square(x)

    found = remote.map(cut_off, [float(i) for i in range(12)])
    return {
        "squares": [float(each) for each in found],
        "again": [each.numpy().tolist() for each in remote.map(square, SLICES)],
        "left": [str(task) for task in remote.tasks],
    }


@contextlib.contextmanager
def _silent_are_lost_soon(remote: Remote) -> Iterator[None]:
    """Count a task as lost sooner than else, yet later than a busy machine may let it answer."""
    before, remote._pool._heartbeat_timeout = remote._pool._heartbeat_timeout, 15.0
    try:
        yield
    finally:
        remote._pool._heartbeat_timeout = before


def killed(remote: Remote, folder: Path) -> dict[str, Any]:
    """One task is killed while it computes; the others do its part."""
    found = _losing(remote, "worker:1", signal.SIGKILL)
    return {**found, "asked_for_lost": _error(lambda: remote.device("worker", 1))}


def stopped(remote: Remote, folder: Path) -> dict[str, Any]:
    """One task is stopped while it computes; the others do its part, and this process ends without it."""
    with _silent_are_lost_soon(remote):
        found = _losing(remote, "reader:0", signal.SIGSTOP)
    return {**found, "none_left": _error(lambda: remote.map(tf.square, SLICES, job="reader"))}


def returning(remote: Remote, folder: Path) -> dict[str, Any]:
    """One task is killed and started again, and one is stopped and goes on: both compute again."""
    with remote.device("reader"):
        held = tf.Variable(2.0)
    there = tf.function(lambda x: {"value": held * x, "pid": pid_there()})
    numbers = [float(i) for i in range(12)]

    def found() -> dict[str, Any]:
        parts = remote.map(there, numbers)
        values = [float(part["value"]) for part in parts]
        return {"values": values, "pids": sorted({int(part["pid"]) for part in parts})}

    def wait_for_all() -> None:
        while len(remote.tasks) < 3:
            time.sleep(0.1)

    pids = {}
    for task in remote.tasks:
        with remote.device(*task):
            pids[str(task)] = int(pid_there())
    whole = found()
    os.kill(pids["worker:1"], signal.SIGKILL)
    without_killed = found()
    (folder / "killed").touch()
    wait_for_all()
    with_new = found()
    os.kill(pids["worker:0"], signal.SIGSTOP)
    with _silent_are_lost_soon(remote):
        without_silent = found()
    os.kill(pids["worker:0"], signal.SIGCONT)
    wait_for_all()
    return {
        "pids": pids,
        "whole": whole,
        "without_killed": without_killed,
        "with_new": with_new,
        "without_silent": without_silent,
        "with_all": found(),
    }


def leaving(remote: Remote, folder: Path) -> dict[str, Any]:
    """Variables on a lost task cannot be had elsewhere: that is said, not tried on one task after the other."""
    with remote.device("worker", 0):
        held, victim = tf.Variable(2.0), int(pid_there())
    times = tf.function(lambda x: held * x)
    first = [float(each) for each in remote.map(times, [1.0, 2.0])]
    os.kill(victim, signal.SIGKILL)
    problem = _error(lambda: remote.map(times, [3.0] * 4, job="reader"))
    return {"first": first, "problem": problem}
