"""Run one task of a benchmark: train as the main job does, and write how long a step takes."""

import os
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import tensorflow as tf

from tfdist import __version__
from tfdist._utils.strategy_kinds import has_mirrored_workers, is_asynchronous
from tfdist._utils.write_files import write_json
from tfdist.benchmark.task_measurements import Exchange, Record
from tfdist.cluster.config import ClusterConfig
from tfdist.coordination.cluster_traffic import Traffic
from tfdist.coordination.heartbeat_watch import Watcher
from tfdist.datasets.open_data import open_data
from tfdist.errors import NotFinite
from tfdist.strategies.factory import make_strategy
from tfdist.strategies.server import serve
from tfdist.strategies.strategy_classes import ring_of
from tfdist.trainer.batches_of_config import Batches
from tfdist.trainer.config import Config
from tfdist.trainer.model_of_config import initial_model
from tfdist.trainer.step_counts import steps_per_call
from tfdist.training.error_messages.lost_task_errors import naming_lost_tasks
from tfdist.training.model_session import Session
from tfdist.training.reports.task_speed import computing_seconds
from tfdist.training.workers.choose_steps_per_call import StepsPerCall
from tfdist.training.workers.exchange_numbers import wait_for_all
from tfdist.training.workers.stop_together import Agreement

# The type in which the workers agree, before a step, on whether they have data.
_TYPE_OF_DATA_AGREEMENT = "int64"


def measure(config: Config, cluster: ClusterConfig, folder: Path, *, steps: int, warmup: int) -> None:
    """Train some steps that are not measured, and then some that are; write the measurements.

    Args:
        config: What is trained.
        cluster: The cluster and this process's task.
        folder: Where to write the measurements.
        steps: How many steps of each worker are measured.
        warmup: How many steps precede them.
    """
    heartbeat_timeout = config.watch.silence_limit
    if cluster.serves:
        serve(cluster, **config.strategy.serving(), heartbeat_timeout=heartbeat_timeout)
        return
    strategy = make_strategy(cluster, **config.strategy_options(cluster))
    with Watcher(cluster, heartbeat_timeout=heartbeat_timeout), naming_lost_tasks("bench", strategy):
        data = open_data(**config.data.wanted())
        model = initial_model(config, data, strategy)
        session = Session(model, strategy, Batches.of(config, data, model, strategy).train)
        workers = cluster.size("worker") if is_asynchronous(strategy) else 0
        calls = steps_per_call(config, data, model, workers=workers)
        loop = _Loop(session, strategy, config, cluster, workers or 1, calls)
        loop.run(warmup)
        wait_for_all(strategy)
        with Traffic(strategy) as traffic:
            before = loop.state()
            computed = loop.run(steps)
            after = loop.state()
        sent, size = traffic.bytes_sent, 4 * model.count_params()
        record = _record(loop, before, after, computed, sent=sent, steps=steps, parameters=size)
        wait_for_all(strategy)
    write_json(folder / f"{record.task.replace(':', '-')}.json", msgspec.to_builtins(record))


class _Loop:
    """Train as the main job does between two checkpoints, with all checks after an execution."""

    def __init__(
        self,
        session: Session,
        strategy: tf.distribute.Strategy,
        config: Config,
        cluster: ClusterConfig,
        workers: int,
        calls: StepsPerCall,
    ) -> None:
        self.strategy, self.cluster, self.config = strategy, cluster, config
        self.workers, self._calls = workers, calls
        self._training = session.training(stops_at_failure=True)
        self._agreement = Agreement(strategy, is_chief=cluster.is_chief, steps_per_call=calls)

    def run(self, steps: int) -> Any:
        """Run this many steps of each worker; return the seconds and steps that each replica computed."""
        step, calls = self._training.step, self._calls
        totals = first_totals = step.begin()
        calls.pause()
        executions = self._training.runner.epoch(steps * self.workers, lambda: calls.number, first_totals)
        for ran, totals in executions:
            failure = step.failure(totals)
            if failure is not None:
                problem = f"became {failure.kind} within the measured steps"
                raise NotFinite("the loss", problem, remedy="Look at train.learning_rate; see tfdist train")
            self._agreement.after_execution(False, ran)
        return step.times(totals)

    def state(self) -> "_State":
        """Read all clocks."""
        ring = ring_of(self.strategy)
        taken = (
            {}
            if ring is None
            else {name: (taken.seconds, taken.waiting, taken.hidden) for name, taken in ring.taken.items()}
        )
        return _State(
            # The servers' processor seconds come first, because it takes a while to fetch them.
            processors=processor_seconds(self.cluster),
            taken=taken,
            asked=self._training.runner.waited,
            at=time.monotonic(),
        )


class _State(msgspec.Struct, frozen=True, kw_only=True):
    processors: dict[str, float]
    taken: dict[str, tuple[float, float, float]]
    asked: float
    at: float


def _record(
    loop: _Loop,
    before: _State,
    after: _State,
    computed: Any,
    *,
    sent: Mapping[str, int],
    steps: int,
    parameters: int,
) -> Record:
    cluster, seconds, all_steps = loop.cluster, after.at - before.at, steps * loop.workers
    since = {
        name: tuple(new - old for new, old in zip(taken, before.taken.get(name, (0.0,) * 3), strict=True))
        for name, taken in after.taken.items()
    }
    exchanged, waiting, hidden = (sum(taken[place] for taken in since.values()) for place in range(3))
    return Record(
        task=str(cluster.task or "this process"),
        strategy=type(loop.strategy).__name__,
        exchange=_exchange(loop.strategy, cluster),
        examples_per_second=all_steps * loop.config.data.batch_size / seconds,
        step=seconds / steps,
        asked=(after.asked - before.asked) / all_steps,
        computing=computing_seconds(cluster, computed),
        moving=(exchanged - waiting) / steps,
        waiting=waiting / steps,
        hidden=hidden / steps,
        agreeing=since.get(_TYPE_OF_DATA_AGREEMENT, (0.0,))[0] / steps,
        processors={
            name: (value - before.processors[name]) / all_steps for name, value in after.processors.items()
        },
        sent={name: count / all_steps for name, count in sent.items()},
        parameters=parameters,
        versions={"tfdist": __version__, "tensorflow": tf.__version__, "python": platform.python_version()},
    )


def _exchange(strategy: tf.distribute.Strategy, cluster: ClusterConfig) -> Exchange:
    if ring_of(strategy) is not None:
        return "ring"
    if cluster.ps:
        return "servers"
    if has_mirrored_workers(strategy) and strategy.num_replicas_in_sync > 1:
        return "collectives"
    return "devices" if strategy.num_replicas_in_sync > 1 else "none"


def processor_seconds(cluster: ClusterConfig) -> dict[str, float]:
    """Return the processor seconds of this task and of its servers; none where these have no /proc."""
    seconds_by_task = {str(cluster.task or "this process"): time.process_time()}
    for task in cluster.training().tasks():
        if cluster.with_task(*task).serves:
            try:
                with tf.device(task.device):
                    stat = tf.io.read_file("/proc/self/stat")
            except tf.errors.NotFoundError:  # all systems but Linux; a part of the sum would say nothing
                return {}
            # The fields after the name, which is in brackets and may contain anything.
            fields = stat.numpy().decode().rpartition(")")[2].split()
            seconds_by_task[str(task)] = sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
    return seconds_by_task
