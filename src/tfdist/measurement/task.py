"""Be a task of a run that is measured: train as the main job does, and write what a step takes."""

import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import tensorflow as tf

from tfdist import __version__
from tfdist.cluster import ClusterConfig
from tfdist.config import Config
from tfdist.data import open_data
from tfdist.errors import NotFinite
from tfdist.files import write_json
from tfdist.loop import SECONDS, STEPS, Agreement, Session, naming_lost_tasks, wait_for_all
from tfdist.measurement.records import Exchange, Record
from tfdist.pace import computing_tasks
from tfdist.recipe import compiled_model, train_batches
from tfdist.server import serve
from tfdist.strategy import make_strategy
from tfdist.traffic import Traffic
from tfdist.usage import processor_seconds
from tfdist.watcher import Watcher

__all__ = ["measure"]

# In which type the workers tell each other, before a step, whether they have data.
_OF_DATA = "int64"


def measure(config: Config, cluster: ClusterConfig, folder: Path, *, steps: int, warmup: int) -> None:
    """Do this task's part of some steps that are not measured, and of some that are.

    Args:
        config: What is trained.
        cluster: The cluster and this process's task.
        folder: Where to write what was measured.
        steps: How many steps each worker is measured for.
        warmup: How many come before.
    """
    silence = config.watch.silence
    if cluster.serves:
        serve(cluster, **config.strategy.serving(), silence_timeout=silence)
        return
    strategy = make_strategy(cluster, **config.strategy_options(cluster))
    with Watcher(cluster, silence=silence), naming_lost_tasks("bench", strategy):
        tf.keras.utils.set_random_seed(config.train.seed)
        data = open_data(**config.data.wanted())
        with strategy.scope():
            model = compiled_model(config, data)
        session = Session(model, strategy, lambda context: train_batches(context, data, config))
        loop = _Loop(session, strategy, config, cluster)
        loop.run(warmup)
        wait_for_all(strategy)
        with Traffic(strategy) as traffic:
            before = loop.state()
            computed = loop.run(steps)
            after = loop.state()
        sent, size = traffic.bytes_sent, 4 * model.count_params()
        found = _record(loop, before, after, computed, sent=sent, steps=steps, parameters=size)
        wait_for_all(strategy)
    write_json(folder / f"{found.task.replace(':', '-')}.json", msgspec.to_builtins(found))


class _Loop:
    """Train as the main job does between two checkpoints, with all that it asks after an execution."""

    def __init__(
        self, session: Session, strategy: tf.distribute.Strategy, config: Config, cluster: ClusterConfig
    ) -> None:
        self.strategy, self.cluster, self.config = strategy, cluster, config
        self._training = session.training(stops_at_failure=True)
        self._step = session.train_step
        self._agreement = Agreement(strategy, is_chief=cluster.is_chief)
        self.is_apart = isinstance(strategy, tf.distribute.ParameterServerStrategy)
        self.workers = cluster.size("worker") if self.is_apart else 1

    def run(self, steps: int) -> Any:
        """Let each worker take so many steps; give the seconds that each replica computed, and its steps."""
        way, per_call = self._step, self.config.train.steps_per_execution
        totals = begin = way.no_totals()
        for _, totals in self._training.epoch(steps * self.workers, per_call, begin):
            failure = way.failure(totals)
            if failure is not None:
                problem = f"has become {failure.kind} within the steps that are measured"
                raise NotFinite("the loss", problem, remedy="Look at train.learning_rate; see tfdist train")
            self._agreement.after_execution(False)
        return way.times(totals)

    def state(self) -> "_State":
        """Read all clocks."""
        ring = getattr(self.strategy, "ring", None)
        taken = (
            {} if ring is None else {name: (each.seconds, each.waiting) for name, each in ring.taken.items()}
        )
        return _State(
            # What the servers have worked is asked for first: it takes a while.
            processors=processor_seconds(self.cluster),
            taken=taken,
            asked=self._training.waited,
            at=time.monotonic(),
        )


class _State(msgspec.Struct, frozen=True, kw_only=True):
    processors: dict[str, float]
    taken: dict[str, tuple[float, float]]
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
        name: tuple(new - old for new, old in zip(pair, before.taken.get(name, (0.0, 0.0)), strict=True))
        for name, pair in after.taken.items()
    }
    exchanged, waiting = (sum(pair[place] for pair in since.values()) for place in (0, 1))
    return Record(
        task=str(cluster.task or "this process"),
        strategy=type(loop.strategy).__name__,
        exchange=_exchange(loop.strategy, cluster),
        examples_per_second=all_steps * loop.config.data.batch_size / seconds,
        step=seconds / steps,
        asked=(after.asked - before.asked) / all_steps,
        computing=_computing(cluster, computed),
        moving=(exchanged - waiting) / steps,
        waiting=waiting / steps,
        agreeing=since.get(_OF_DATA, (0.0, 0.0))[0] / steps,
        processors={
            name: (value - before.processors[name]) / all_steps for name, value in after.processors.items()
        },
        sent={name: count / all_steps for name, count in sent.items()},
        parameters=parameters,
        versions={"tfdist": __version__, "tensorflow": tf.__version__, "python": platform.python_version()},
    )


def _computing(cluster: ClusterConfig, computed: Any) -> dict[str, float]:
    """Give the seconds that each task computes for a step; of its replicas the slowest counts."""
    if computed is None:
        return {}
    names = [str(task) for task in computing_tasks(cluster)] or ["this process"]
    each = np.asarray(computed).reshape(len(names), -1, np.shape(computed)[-1])
    slowest = np.max(each[:, :, SECONDS] / np.maximum(each[:, :, STEPS], 1), axis=1)
    return {name: float(taken) for name, taken in zip(names, slowest, strict=True) if taken}


def _exchange(strategy: tf.distribute.Strategy, cluster: ClusterConfig) -> Exchange:
    if getattr(strategy, "ring", None) is not None:
        return "ring"
    if cluster.ps:
        return "servers"
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy) and strategy.num_replicas_in_sync > 1:
        return "collectives"
    return "devices" if strategy.num_replicas_in_sync > 1 else "none"
