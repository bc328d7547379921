"""Make sure that all mirrored workers are in the same call of tfdist: `fit`, `evaluate` and so on.

Every call has a number. The first exchange of a call tells the number and the name to all workers. The
`CallWatch` of each process finds what no exchange can find, such as a worker whose script has ended.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist._utils.strategy_kinds import has_mirrored_workers
from tfdist._utils.tf_private import put_for_workers, take_of_workers, worker_count, worker_number
from tfdist.cluster.config import ClusterConfig
from tfdist.coordination.calls_between_tasks import resolver_of
from tfdist.coordination.calls_out_of_step import NAMES, CallState, out_of_step
from tfdist.coordination.out_of_step_watch import CallWatch
from tfdist.errors import ConfigError, first_line
from tfdist.strategies.current_cluster_and_strategy import current_strategy
from tfdist.training.workers.exchange_numbers import sum_over_workers

_COLUMNS = 10  # a digest has 8, and all exchanges at the beginning of a call have one size
_KEY = "tfdist/calls/"
_WITHOUT_EXCHANGE = ("train_on_batch", "test_on_batch")  # at their beginning: they are a step each
_MOST_COUNTED = 1 << 24  # a float32 holds it exactly
_SECONDS_TO_TELL = 2.0
_SECONDS_TO_TELL_IF_ALL_ANSWER = 10.0  # one may stand still for a moment, or be on a busy machine
_watch: CallWatch | None = None  # a process is connected to one cluster


def watch_calls(strategy: tf.distribute.Strategy) -> CallWatch | None:
    """Return the watch of this process's calls, started if it is new; None for one worker."""
    global _watch
    if not _is_of_several(strategy):
        return None
    if _watch is None:
        _watch = CallWatch(worker_names(strategy), worker_number(strategy), _Store())
        _watch.start()
    return _watch


@contextlib.contextmanager
def in_call(name: str, strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Count the block as a call of tfdist, which all mirrored workers must make."""
    watch = watch_calls(strategy)
    if watch is None:
        yield
        return
    with watch.call(name, meets=name not in _WITHOUT_EXCHANGE):
        yield


def check_same_call(strategy: tf.distribute.Strategy) -> None:
    """Wait until all workers are here, and check that they are in the same call.

    Raises:
        ConfigError: A worker is in another call.
    """
    if _watch is not None and _is_of_several(strategy):
        gathered_in_call(strategy, np.zeros(0, np.float32))


def gathered_in_call(strategy: tf.distribute.Strategy, values: Any) -> Any:
    """Return the values of each worker, in rows; they are as many everywhere, unless the calls differ.

    Raises:
        ConfigError: A worker is in another call.
    """
    state = CallState() if _watch is None else _watch.state
    mine = [state.inside % _MOST_COUNTED, NAMES.index(state.inside_name) + 1 if state.inside else 0]
    table = np.zeros((worker_count(strategy), _COLUMNS), np.float32)
    table[worker_number(strategy), : 2 + len(values)] = [*mine, *values]
    table = sum_over_workers(strategy, table).numpy()
    calls = table[:, :2].astype(int)
    if (calls != calls[0]).any():
        raise _other_calls(strategy, calls)
    if _watch is not None:
        _watch.met()
    return table[:, 2:]


def strategy_of_call(name: str) -> tf.distribute.Strategy:
    """Return the strategy whose workers must all make a call.

    Raises:
        ConfigError: This process is one of several mirrored workers, but has not connected to the others.
    """
    strategy = current_strategy() or tf.distribute.get_strategy()
    if current_strategy() is None and not has_mirrored_workers(strategy):
        cluster = ClusterConfig.from_environment()
        others = cluster.size("chief") + cluster.size("worker") > 1 and not cluster.size("ps")
        if others and cluster.task is not None and not cluster.is_evaluator:
            problem = f"is called before tfdist.start(), so {cluster.task} cannot wait for the other workers"
            raise ConfigError(name, problem, remedy="Call tfdist.start() right after the imports")
    return strategy


def why_out_of_step(*, are_all_there: bool) -> ConfigError | None:
    """Return the error if an exchange has failed because the workers are in different calls."""
    if _watch is None:
        return None
    seconds = _SECONDS_TO_TELL_IF_ALL_ANSWER if are_all_there else _SECONDS_TO_TELL
    return _watch.why_broken(seconds, is_broken=are_all_there)


def _is_of_several(strategy: tf.distribute.Strategy) -> bool:
    return has_mirrored_workers(strategy) and worker_count(strategy) > 1


def worker_names(strategy: tf.distribute.Strategy) -> list[str]:
    """Return the names of mirrored workers by their numbers."""
    jobs = resolver_of(strategy).cluster_spec().as_dict()
    return [f"{job}:{index}" for job in ("chief", "worker") for index in range(len(jobs.get(job, ())))]


def _other_calls(strategy: tf.distribute.Strategy, calls: Any) -> ConfigError:
    def state(number: int, code: int) -> CallState:
        name = NAMES[code - 1] if 0 < code <= len(NAMES) else "a call of another version of tfdist"
        return CallState(number, name, number, name)

    return out_of_step(worker_names(strategy), [state(*call) for call in calls.tolist()])


class _Store:
    """TensorFlow's coordination service, as a store of texts."""

    def put(self, key: str, text: str) -> None:
        """Store a text under a key that is not in use."""
        with _lost_connection():
            put_for_workers(_KEY + key, text)

    def take(self, key: str) -> str:
        """Wait until there is a text under a key, remove it and return it."""
        with _lost_connection():
            return take_of_workers(_KEY + key)


@contextlib.contextmanager
def _lost_connection() -> Iterator[None]:
    try:
        yield
    except tf.errors.OpError as error:
        raise ConnectionError(first_line(error)) from error
