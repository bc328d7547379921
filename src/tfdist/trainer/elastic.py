"""Continue a run with the workers that are present, and admit the others when they come.

TensorFlow cannot change a cluster that is running. So when a task is lost or joins, all tasks restart: each
keeps its process and executes its command again. They meet in a rendezvous, and resume from the last
checkpoint as the new cluster. The global batch, with its examples, stays the same. Beside parameter servers
only the chief restarts; the others serve it as before.
"""

import contextlib
import logging
import os
import re
import sys
import threading
from collections.abc import Iterable
from typing import NoReturn

import msgspec
import tensorflow as tf

from tfdist.cluster.config import ClusterConfig, Task
from tfdist.coordination.background_threads import end_process
from tfdist.coordination.grpc_health_probe import answers
from tfdist.coordination.rendezvous import find_waiting, hold_rendezvous, marks_of
from tfdist.coordination.wait_for_tasks import START_TIMEOUT, await_servers
from tfdist.errors import Preempted, TaskLost
from tfdist.trainer.config import Config
from tfdist.trainer.sections.starting_and_watching_tasks import ElasticSection
from tfdist.training.workers.exchange_numbers import take_from_chief

# How many tasks were lost in a row, without a checkpoint in between; it survives the restart of this process.
_LOSSES = "TFDIST_LOSSES_IN_A_ROW"
_log = logging.getLogger("tfdist")


class MembershipChanged(Exception):
    """A task waits to join the cluster: all tasks must restart, from the checkpoint that they have saved."""


class Elastic:
    """The tasks of a cluster that take part in training.

    Attributes:
        cluster: The cluster of these tasks.
        strategy_options: The arguments of `make_strategy` for this cluster.
    """

    def __init__(self, config: Config, section: ElasticSection, cluster: ClusterConfig) -> None:
        """Wait until enough of the tasks are present."""
        self._whole, self._restarts = cluster.training(), config.launch.restarts
        sections = msgspec.to_builtins(config)
        self._marks = marks_of(cluster, {f"{name} section": value for name, value in sections.items()})
        present = self._gather(config.strategy.start_timeout or START_TIMEOUT, section)
        self.strategy_options = {
            **config.strategy_options(cluster),
            # Not auto: it would take another strategy for one worker.
            "strategy": "parameter_server_sync" if cluster.ps else "multi_worker_mirrored",
            "start_timeout": section.join_timeout,
        }
        self._absent = [task for task in self._whole.tasks() if task not in present]
        self.cluster = self._whole.of(present)
        if self._absent:
            renamed = zip(present, self.cluster.tasks(), strict=True)
            others = ", ".join(f"{old} is {new} now" for old, new in renamed if old != new)
            _log.warning(
                "continuing with %d of %d tasks, without %s%s",
                len(present),
                len(self._whole.tasks()),
                self._named(self._absent),
                f"; {others}" if others else "",
            )
        self._restarting = threading.Lock()
        count = os.environ.get(_LOSSES, "0")
        self._losses_in_a_row = int(count) if re.fullmatch(r"[0-9]{1,6}", count) else 0

    def _gather(self, timeout: float, section: ElasticSection) -> tuple[Task, ...]:
        """Wait until enough of the tasks are present, and return them."""
        least, wait = section.min_workers, section.join_timeout
        if not self._whole.ps:
            return hold_rendezvous(self._whole, self._marks, timeout=timeout, least=least, wait=wait)
        servers = [task for task in self._whole.tasks() if task.type != "chief"]
        there = await_servers("make_strategy", self._whole, servers, timeout, least=least, wait=wait)
        return (Task("chief", 0), *there)

    def _find_joining(self) -> tuple[Task, ...]:
        """Return the absent tasks that are present now."""
        if not self._whole.ps:
            return find_waiting(self._whole, self._absent, self._marks)
        return tuple(task for task in self._absent if answers(self._whole.address(task)))

    def check_membership(self, strategy: tf.distribute.Strategy) -> None:
        """Check whether an absent task waits to join; all tasks call this after a checkpoint.

        Raises:
            MembershipChanged: A task waits to join. All tasks raise it, and must restart.
        """
        self._losses_in_a_row = 0
        if not self._absent:
            return
        joining = self._find_joining() if self.cluster.is_chief else ()
        [count] = take_from_chief(strategy, [tf.constant(len(joining))], is_chief=self.cluster.is_chief)
        if int(count):
            raise MembershipChanged(f"{self._named(joining) or 'a task'} has joined")

    def restart(self, reason: MembershipChanged | Preempted | TaskLost) -> NoReturn:
        """Execute this task's command again; exit instead after too many lost tasks in a row.

        A second thread may call this while the main thread waits for the lost task.
        """
        self._restarting.acquire()  # a second caller waits until this process ends
        # Only a lost task has not saved a checkpoint.
        self._losses_in_a_row = self._losses_in_a_row + 1 if isinstance(reason, TaskLost) else 0
        if isinstance(reason, TaskLost) and self._losses_in_a_row > self._restarts:
            end_process(reason)
        _log.warning("%s: restarting from the last checkpoint", reason)
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):  # on a full disk, the text is lost, and not this task
                stream.flush()
        os.environ[_LOSSES] = str(self._losses_in_a_row)
        # The process stays the same, so the shell, scheduler or launcher that started it notices nothing.
        # execv closes TensorFlow's sockets and ends its threads.
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606

    def _named(self, tasks: Iterable[Task]) -> str:
        return " and ".join(map(self._whole.with_address, tasks))
