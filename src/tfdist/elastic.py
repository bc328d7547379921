"""Let a run go on with those of its workers that are there, and take in the others when they come.

A cluster of TensorFlow's cannot change while it lives. So its tasks begin anew, each as the same process with
the same command, when one of them is lost or has come; they meet in a roll-call, and go on from the last
checkpoint as the cluster that they are then. The global batch, and what is in it, stays as it was. Beside
parameter servers only the chief begins anew; the others serve it as they did before.
"""

import logging
import os
import re
import sys
import threading
from collections.abc import Iterable
from typing import NoReturn

import msgspec
import tensorflow as tf

from tfdist.awaiting import await_servers
from tfdist.cluster import ClusterConfig, Task
from tfdist.config import Config, ElasticSection
from tfdist.errors import Preempted, TaskLost
from tfdist.loop import take_from_chief
from tfdist.probing import answers
from tfdist.rollcall import find_waiting, fingerprint, hold_roll_call

__all__ = ["Elastic"]

_START_TIMEOUT = 600.0
# How often in a row this process has begun anew without a checkpoint in between.
_COUNT = "TFDIST_BEGUN_ANEW"
_log = logging.getLogger("tfdist")


class Elastic:
    """Know who of a cluster takes part in its training.

    Attributes:
        cluster: The cluster of those that do.
        strategy: What `make_strategy` is to be called with for them.
    """

    def __init__(self, config: Config, section: ElasticSection, cluster: ClusterConfig) -> None:
        """Wait until enough of the tasks are there."""
        self._whole, self._restarts = cluster.training(), config.launch.restarts
        self._mark = fingerprint(cluster, msgspec.json.encode(config).decode())
        present = self._gather(config.strategy.start_timeout or _START_TIMEOUT, section)
        self.strategy = {
            **config.strategy_options(cluster),
            # Also where one worker is left.
            "strategy": "parameter_server_sync" if cluster.ps else "multi_worker_mirrored",
            "start_timeout": section.wait,
        }
        self._absent = [task for task in self._whole.tasks() if task not in present]
        self.cluster = self._whole.of(present)
        if self._absent:
            renamed = zip(present, self.cluster.tasks(), strict=True)
            others = ", ".join(f"{old} is {new} now" for old, new in renamed if old != new)
            _log.warning(
                "going on with %d of %d tasks, without %s%s",
                len(present),
                len(self._whole.tasks()),
                self._named(self._absent),
                f"; {others}" if others else "",
            )
        self._beginning = threading.Lock()
        count = os.environ.get(_COUNT, "0")
        self._fruitless = int(count) if re.fullmatch(r"[0-9]{1,6}", count) else 0

    def _gather(self, timeout: float, section: ElasticSection) -> tuple[Task, ...]:
        """Wait until enough of the tasks are there, and say which."""
        least, wait = section.min_workers, section.wait
        if not self._whole.ps:
            return hold_roll_call(self._whole, self._mark, timeout=timeout, least=least, wait=wait)
        servers = [task for task in self._whole.tasks() if task.type != "chief"]
        there = await_servers("make_strategy", self._whole, servers, timeout, least=least, wait=wait)
        return (Task("chief", 0), *there)

    def _find_come(self) -> tuple[Task, ...]:
        """Say who of the absent is there now."""
        if not self._whole.ps:
            return find_waiting(self._whole, self._absent, self._mark)
        return tuple(task for task in self._absent if answers(self._whole.address(task)))

    def take_in(self, strategy: tf.distribute.Strategy) -> None:
        """Begin anew if somebody who was absent waits to take part; all tasks call it, after a checkpoint."""
        self._fruitless = 0
        if not self._absent:
            return
        come = self._find_come() if self.cluster.is_chief else ()
        [count] = take_from_chief(strategy, [tf.constant(len(come))], is_chief=self.cluster.is_chief)
        if int(count):
            self._begin_anew(f"{self._named(come) or 'somebody'} has come")

    def go_on_without(self, error: TaskLost | Preempted) -> NoReturn:
        """Begin anew after another task was lost or told to end, unless that has been of no use too often.

        It may be called on a thread of its own, while the main thread waits for a task that is lost.
        """
        self._beginning.acquire()  # whoever comes second waits for the end of this process
        self._fruitless = 0 if isinstance(error, Preempted) else self._fruitless + 1  # all is saved, or not
        if self._fruitless > self._restarts:
            print(f"tfdist: {error}", file=sys.stderr, flush=True)
            logging.shutdown()
            os._exit(error.exit_code)
        self._begin_anew(str(error))

    def _begin_anew(self, why: str) -> NoReturn:
        _log.warning("%s: beginning anew, from the last checkpoint", why)
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os.environ[_COUNT] = str(self._fruitless)
        # The same process: so whoever has started it, a shell, a scheduler or a launcher, notices nothing.
        # TensorFlow's sockets are closed by it, and its threads end.
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606

    def _named(self, tasks: Iterable[Task]) -> str:
        return " and ".join(f"{task} at {self._whole.address(task)}" for task in tasks)
