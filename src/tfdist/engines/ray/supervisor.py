"""Run the tasks of a cluster in actors of Ray: place them, start them, follow them, start lost ones again.

As in the supervisor of the launcher, RestartPolicy decides what follows from the end of a task. But a task
that restarts alone needs its old address, which the others know. If it does not get that, all start again,
with new addresses where an actor is another.
"""

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from tfdist._utils.check_and_expand_paths import current_folder
from tfdist.cluster.addresses_and_free_ports import join_address
from tfdist.cluster.config import ClusterConfig, Task
from tfdist.engines.ray.actor import News, Start, TaskActor
from tfdist.engines.ray.launch_plan import LaunchPlan
from tfdist.errors import LOST, ConfigError, Preempted, TaskLost, TfdistError, one_line
from tfdist.launcher.environment import GRACE, SECRET, START
from tfdist.launcher.launch_tasks import signals_to
from tfdist.launcher.supervisor.restart_policy import NEVER, NewCheckpoints, RestartPolicy
from tfdist.launcher.task_logs import task_log_path

_SECONDS_TO_KILL = 15.0  # after the grace, until an actor that does not answer is killed
_SECONDS_BETWEEN_HINTS = 30.0
_MOST_LINES_SHOWN = 3
_INTERNAL = re.compile("^node:|_group_|memory")  # resources that no user has named
_KILLED = -int(signal.SIGKILL)  # the status of a task whose actor is gone


@dataclass
class _Member:
    """A task, and its actor of now."""

    task: Task
    index: int  # of its bundle in the placement group
    actor: Any = None
    address: tuple[str, int] | None = None
    is_running: bool = False
    last_lines: list[str] = field(default_factory=list)
    results: Mapping[str, bytes] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.task} on {self.address[0]}" if self.address else str(self.task)


class RayCluster:
    """The tasks of a cluster, each in an actor of Ray."""

    def __init__(self, plan: LaunchPlan) -> None:
        self._plan = plan
        tasks = [Task(role, i) for role in sorted(plan.counts) for i in range(plan.counts[role])]
        self._members = {str(task): _Member(task, index) for index, task in enumerate(tasks)}
        # The addresses are not known yet.
        cluster = ClusterConfig.of_addresses({task: f"localhost:{i}" for i, task in enumerate(tasks, 1)})
        self._lead = cluster.lead
        self._policy = RestartPolicy(
            lead=str(cluster.lead),
            servers=[str(task) for task in tasks if cluster.with_task(*task).serves],
            evaluators=[str(task) for task in tasks if task.type == "evaluator"],
            alone=[str(task) for task in tasks if task.type in plan.alone],
            restarts=plan.section.max_failures,
            grace=plan.grace + _SECONDS_TO_KILL,  # the task's own process kills it after its grace
            linger=plan.linger,
            lost=LOST,
            terminate=self._terminate,
        )
        self._group: Any = None  # Ray's placement group
        self._cluster, self._secret, self._mark = cluster, "", os.urandom(8).hex()
        self._pending: dict[Any, tuple[_Member, Callable[[_Member, Any], None]]] = {}
        self._checkpoints = NewCheckpoints()
        self._told: int | None = None
        self._failed: tuple[_Member, int] | None = None

    def run(self) -> None:
        """Run the tasks to their end.

        Raises:
            TaskLost: A task was lost, and max_failures restarts were used up.
            ConfigError: A task has ended with exit status 2, or resources are missing.
            TfdistError: A task has failed.
            Preempted: This process was told to end; the tasks have saved their work.
        """
        should_run = True
        with self._placed(), signals_to(self._on_signal):
            try:
                while should_run:
                    self._policy.begin_round()
                    if self._start_all():
                        self._follow()
                    for member in self._members.values():
                        if member.is_running:  # it has outlived its grace: its actor does not answer
                            self._drop_actor(member)
                    should_run = self._wait_for_next_round()
            finally:
                for member in self._members.values():
                    self._drop_actor(member)
        self._raise_failure()

    def results(self, name: str) -> dict[str, bytes]:
        """Return the content of a result file, by the name of the task that has left it."""
        return {task: m.results[name] for task, m in self._members.items() if name in m.results}

    # -- placement --

    @contextlib.contextmanager
    def _placed(self) -> Iterator[None]:
        """Reserve the resources of all tasks."""
        bundles = [self._plan.bundle(member.task.type) for member in self._members.values()]
        placement = self._plan.section.placement
        self._group = placement_group(bundles, strategy=placement)
        try:
            deadline = time.monotonic() + self._plan.start_timeout
            while not self._group.wait(min(_SECONDS_BETWEEN_HINTS, self._plan.start_timeout)):
                needed = " + ".join(_shown(bundle) for bundle in bundles)
                problem = f"the tasks need {needed} ({placement}), the cluster has {_available()}"
                if time.monotonic() > deadline:
                    remedy = "Ask for less by `resources`, or start more nodes"
                    raise ConfigError("ray", problem, remedy=remedy)
                _say(f"waiting for resources: {problem}")
            yield
        finally:
            remove_placement_group(self._group)

    def _has_places(self) -> bool:
        return bool(placement_group_table(self._group)["state"] == "CREATED")

    def _new_actor(self, member: _Member) -> None:
        amounts = self._plan.bundle(member.task.type)
        cpus, gpus, memory = amounts.pop("CPU", 0.0), amounts.pop("GPU", 0.0), amounts.pop("memory", None)
        make = ray.remote(TaskActor).options(
            num_cpus=cpus,
            num_gpus=gpus,
            memory=memory,
            resources=amounts,
            max_concurrency=4,  # one answers about news, others start and end the task
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                self._group, placement_group_bundle_index=member.index
            ),
        )
        port = member.address[1] if member.address else None
        member.actor = make.remote(port, self._plan.grace + _SECONDS_TO_KILL)

    def _drop_actor(self, member: _Member) -> None:
        if member.actor is not None:
            ray.kill(member.actor)
        member.actor, member.is_running = None, False

    # -- a round --

    def _start_all(self) -> bool:
        """Make the actors that are missing, collect the addresses, and start all tasks.

        Return whether they were started: not if one of the actors is lost, or this process was told to end.

        Raises:
            TaskLost: Actors have not started in time: a node that was lost does not come back.
        """
        self._pending.clear()
        asked = {}
        for member in self._members.values():
            if member.actor is None:
                self._new_actor(member)
            asked[member.actor.address.remote()] = member
        timeout = self._plan.start_timeout
        deadline = time.monotonic() + timeout
        while asked:
            ready, _ = ray.wait(list(asked), num_returns=1, timeout=min(_SECONDS_BETWEEN_HINTS, timeout))
            if not ready:
                missing = ", ".join(str(member.task) for member in asked.values())
                # Where all places are there, it is the environment or the process that takes its time.
                if time.monotonic() >= deadline and not self._has_places():
                    problem = f"no actor has started in {timeout:g} s; the cluster has {_available()}"
                    raise TaskLost(missing, problem, remedy="Start more nodes, and the job again")
                _say(f"waiting for the actors of {missing}")
            for ref in ready:
                member = asked.pop(ref)
                try:
                    member.address = ray.get(ref)
                except RayActorError as error:
                    self._lose_start(member, _line(error))
                    return False
            if self._told is not None:
                return False
        addresses = {m.task: join_address(*m.address) for m in self._members.values() if m.address}
        self._cluster = ClusterConfig.of_addresses(addresses)
        self._secret = os.urandom(32).hex()
        places = ", ".join(f"{task} at {address}" for task, address in addresses.items())
        _say(f"{len(self._members)} tasks on {len(set(self._hosts()))} nodes: {places}")
        for member in self._members.values():
            member.results = {}
            self._start(member)
        return True

    def _lose_start(self, member: _Member, reason: str) -> None:
        """Begin the next round, because the actor of a task is lost before all tasks were started.

        Raises:
            TaskLost: No restart is left.
        """
        self._drop_actor(member)
        pause = self._policy.lose_start()
        if pause is None:
            raise TaskLost(str(member.task), f"its actor has not started: {reason}")
        _say(f"the actor of {member.task} has not started ({reason}): all tasks start again in {pause:g} s")

    def _hosts(self) -> list[str]:
        return [member.address[0] for member in self._members.values() if member.address]

    def _start(self, member: _Member) -> None:
        variables = {
            **self._plan.variables,
            "TF_CONFIG": self._cluster.tf_config_json(*member.task),
            SECRET: self._secret,
            START: self._mark,
            GRACE: f"{self._plan.grace:g}",
        }
        start = Start(
            command=self._plan.command,
            files=self._plan.files,
            results=self._plan.results,
            variables=variables,
            hosts=self._hosts(),
            # Empty if it is gone: where nodes share a file system, each replaces the job's working_dir.
            folder=str(current_folder() or ""),
            log=str(task_log_path(self._plan.run_dir, member.task)),
            threads=self._plan.threads or max(1, int(self._plan.bundle(member.task.type).get("CPU", 1))),
            grace=self._plan.grace,
            is_lead=member.task == self._lead,
        )
        self._policy.note_start(str(member.task))
        if member.task == self._lead:
            self._checkpoints.begin_life()
        member.is_running, member.last_lines = True, []
        self._pending[member.actor.start.remote(start)] = member, self._on_started

    def _follow(self) -> None:
        """Handle what the actors answer until all tasks of the round have ended."""
        policy = self._policy
        while (self._pending or policy.restart_at) and time.monotonic() < policy.kill_at:
            if self._told is not None:
                policy.stop()
            if time.monotonic() >= policy.end_at and policy.begin_ending():
                self._terminate(self._members)
            for name in policy.take_due():
                self._restart_alone(self._members[name])
            if not self._pending:
                time.sleep(0.1)
                continue
            ready, _ = ray.wait(list(self._pending), num_returns=1, timeout=0.5)
            for ref in ready:
                member, react = self._pending.pop(ref)
                self._answer(member, ref, react)

    def _answer(self, member: _Member, ref: Any, react: Callable[[_Member, Any], None]) -> None:
        try:
            value = ray.get(ref)
        except RayActorError as error:
            _say(f"the actor of {member} is gone: {_line(error)}")
            self._drop_actor(member)
            self._on_end(member, _KILLED)
        except RayTaskError as error:
            member.is_running = False
            if not isinstance(error.cause, OSError):
                raise TfdistError(str(member), _line(error.cause)) from error
            self._terminate(self._members)
            raise ConfigError(str(member), f"cannot start: {_line(error.cause)}") from None
        else:
            react(member, value)

    # -- reactions --

    def _on_started(self, member: _Member, pid: int) -> None:
        if self._policy.is_ending:
            member.actor.end.remote()
        self._pending[member.actor.news.remote()] = member, self._on_news

    def _on_news(self, member: _Member, news: News) -> None:
        lines = news.text.splitlines()
        for line in lines:
            print(f"{member.task}: {line}", flush=True)
        member.last_lines = [*member.last_lines, *lines][-_MOST_LINES_SHOWN:]
        if news.saved_step and self._checkpoints.is_new(news.saved_step):
            self._policy.renew()
        if news.status is None:
            self._pending[member.actor.news.remote()] = member, self._on_news
            return
        member.is_running, member.results = False, news.results
        self._on_end(member, news.status)

    def _on_end(self, member: _Member, status: int) -> None:
        reaction = self._policy.react(str(member.task), status)
        if reaction.pause is not None:
            what = " and starts again" if reaction.alone else ": all tasks start again"
            left = f"{self._policy.allowed - reaction.restart} restarts are left"
            _say(f"{member} is lost ({_status(status)}){what} in {reaction.pause:g} s; {left}")
        elif status and not reaction.asked and not reaction.again:
            self._failed = self._failed or (member, status)
        elif status and reaction.asked and not self._policy.is_ending:
            _say(f"{member} ended with {_status(status)}, after {self._lead} was done")

    def _restart_alone(self, member: _Member) -> None:
        if member.actor is None:
            self._new_actor(member)
        self._pending[member.actor.address.remote()] = member, self._on_address

    def _on_address(self, member: _Member, address: tuple[str, int]) -> None:
        if not self._policy.may_restart(str(member.task)):
            return
        if tuple(address) == member.address:
            self._start(member)
            return
        if self._policy.is_lead_done:
            _say(f"{member.task} has another address after the end of {self._lead}: it does not start again")
            return
        # The others know the old address only. Their work is saved before they start again.
        member.address = address
        _say(f"{member.task} has another address: all tasks start again")
        self._policy.restart_all()

    def _terminate(self, names: Iterable[str]) -> None:
        """Send SIGTERM to those of the tasks that run."""
        for name in names:
            member = self._members[name]
            if member.is_running:
                member.actor.end.remote()

    def _on_signal(self, number: int, frame: object) -> None:
        if self._told is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._told = number

    def _wait_for_next_round(self) -> bool:
        """Wait until the next round is due; return whether there is one."""
        while self._told is None and time.monotonic() < self._policy.next_round < NEVER:
            time.sleep(0.1)
        return self._told is None and self._policy.next_round < NEVER

    def _raise_failure(self) -> None:
        if self._told == signal.SIGINT:
            raise KeyboardInterrupt
        if self._told is not None:
            name = signal.Signals(self._told).name
            raise Preempted(name, "this job was told to end", remedy="Start it again: it continues")
        if self._failed is None:
            return
        member, status = self._failed
        lines = " | ".join(line.strip() for line in member.last_lines)
        log = task_log_path(self._plan.run_dir, member.task)
        problem = f"ended with {_status(status)}; its last lines: {lines or 'none'}"
        kind = {2: ConfigError, LOST: TaskLost}.get(status, TaskLost if status < 0 else TfdistError)
        raise kind(str(member), problem, remedy=f"Its log is {log} on that node")


def _status(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"exit status {status}"


def _shown(amounts: Mapping[str, float]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in sorted(amounts.items())) or "nothing"


def _available() -> str:
    names = {name: amount for name, amount in ray.cluster_resources().items() if not _INTERNAL.search(name)}
    return f"{_shown(names)} on {sum(node['Alive'] for node in ray.nodes())} nodes"


def _line(error: BaseException) -> str:
    return one_line(error)[:300]


def _say(text: str) -> None:
    print(f"tfdist: {text}", flush=True)
