"""Start the tasks of a cluster on this machine, and return how they ended."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Literal, TextIO

from tfdist._utils.readable_text import short_path
from tfdist._utils.stop_signals_from_environment import stop_signals
from tfdist._utils.write_files import storage_errors, temporary_folder
from tfdist.cluster.addresses_and_free_ports import split_address
from tfdist.cluster.config import ClusterConfig, Task
from tfdist.cluster.roles_and_task_counts import ROLES
from tfdist.errors import LOST, ConfigError, did_you_mean, shown
from tfdist.launcher import progress_for_engines, send_reports
from tfdist.launcher.console import ScreenOptions
from tfdist.launcher.dispatch_events import LaunchOutput
from tfdist.launcher.environment import DEFAULT_GRACE, GRACE, LAUNCH, SECRET, START, task_environment
from tfdist.launcher.launch_monitor import LaunchMonitor
from tfdist.launcher.outcome import LaunchReport
from tfdist.launcher.prometheus_metrics import PrometheusMetrics
from tfdist.launcher.record_events import VARIABLE as EVENTS
from tfdist.launcher.record_events import EventFile
from tfdist.launcher.run_events import FILE
from tfdist.launcher.share_cores_and_gpus import Cores, describe_shares, own_cores, share_cores
from tfdist.launcher.start_supervisor import started_supervisor
from tfdist.launcher.supervisor.plan import SupervisorPlan, TaskPlan, as_latin1
from tfdist.launcher.task_logs import TaskLog, opened_logs

__all__ = ["SECONDS_FOR_THE_EVALUATOR", "SECRET", "NetworkIsolation", "check_alone", "launch", "signals_to"]

NetworkIsolation = Literal["auto", "always", "never"]
SECONDS_FOR_THE_EVALUATOR = 600.0  # to evaluate the last checkpoint after the chief has ended

# The variable that marks what a task has started, also if that has begun its own session.
_TASK = "TFDIST_TASK"

_STOP_SIGNALS = (signal.SIGINT, signal.SIGHUP)  # and those that stop a task
_Handler = Callable[[int, FrameType | None], None]


def launch(
    cluster: ClusterConfig,
    command: Sequence[str | os.PathLike[str]],
    *,
    run_dir: Path,
    env: Mapping[str, str] | None = None,
    threads: int | None = None,
    cores: Sequence[int] | None = None,
    gpus: Sequence[str] | None = None,
    pin: bool = False,
    network_isolation: NetworkIsolation = "auto",
    grace: float = DEFAULT_GRACE,
    linger: float | None = None,
    restarts: int = 0,
    alone: Collection[str] = ("evaluator",),
    heartbeat_timeout: float | None = None,
    loads_once: bool = False,
    elsewhere: bool = False,
    stream: TextIO | None = None,
    screen: ScreenOptions | None = None,
    metrics: PrometheusMetrics | None = None,
) -> LaunchReport:
    """Run the same command as every task of a cluster on this machine, and wait until all tasks have ended.

    The job is done when the chief (or worker 0, if there is no chief) has ended with 0 and the others have
    ended too. The first task that fails makes the launcher end the others. SIGINT, SIGTERM and SIGHUP end
    all tasks; a second SIGINT or SIGTERM kills them.

    A task that a signal ends, or that ends with 138, is lost. It is started again: alone if the others can
    continue without it, else together with all others. `restarts` limits how often that happens without a new
    checkpoint in between, of which the chief reports by tfdist.

    Args:
        cluster: The cluster; all its addresses are on this machine.
        command: The program and its arguments; no shell reads them.
        run_dir: The folder of the logs, `logs/<type>-<index>.log`. Existing logs are appended to.
        env: Variables for all tasks, which override those of this process.
        threads: The threads of each task; None to divide the cores (see `share_cores`), unless this process
            has TF_NUM_INTRAOP_THREADS, TF_NUM_INTEROP_THREADS or OMP_NUM_THREADS.
        cores: The numbers of the cores to divide; None for those that this process may use.
        gpus: The GPUs, as CUDA names them; None for those that this process may use.
        pin: Whether to bind each task that computes to its own cores.
        network_isolation: Whether the tasks run in a private network: "auto" if possible, "always" or an
            error, or "never".
        grace: The seconds that a task has to end after SIGTERM.
        linger: The seconds that the others have to end after the chief; None for as many as `grace`.
        restarts: How often lost tasks are started again; a new checkpoint renews it.
        alone: The types of tasks that are started again alone, while the others continue.
        heartbeat_timeout: The seconds that a task may be stopped until it is killed, and so lost; None for
            no limit.
        loads_once: Whether the command calls `fork_tasks`, which loads a module once for all tasks.
        elsewhere: Whether the command takes each task to another machine, whose addresses the cluster has.
        stream: Where to show what happens; None for the standard output.
        screen: How to show it: as JSON, or with all that the tasks print.
        metrics: Metrics that follow what happens.

    Raises:
        ConfigError: if the command cannot be started, the logs cannot be written, or the cluster cannot run
            here.
        StorageError: if the events or temporary files cannot be written.
        LaunchError: if a task failed, or a signal stopped the job.
    """
    _check(cluster, command, restarts, alone)
    if not elsewhere:
        _check_hosts(cluster)
    cores = own_cores() if cores is None else cores
    shares = share_cores(cluster, cores=cores, gpus=gpus, threads=threads, pin=pin)
    mark = os.urandom(8).hex()
    with contextlib.ExitStack() as stack:
        # Outermost: a late signal must not end this process while it tidies up, and change the exit status.
        handle_signals_by = stack.enter_context(signals_restored())
        logs = stack.enter_context(opened_logs(cluster, run_dir))
        with storage_errors(run_dir / FILE):
            events = stack.enter_context(contextlib.closing(EventFile(run_dir / FILE)))
        reports, reporter = send_reports.open_pipe()
        stack.callback(os.close, reports)
        stack.callback(os.close, reporter)
        # A killed task leaves its temporary files here; TensorFlow's AutoGraph writes one for each function.
        scratch = stack.enter_context(temporary_folder("tfdist-"))
        own = {LAUNCH: mark, START: mark, SECRET: os.urandom(32).hex(), GRACE: f"{grace:g}"}
        is_forced = threads is not None
        variables = {
            task: task_environment(cluster, task, share, {"TMPDIR": scratch}, env, is_width_forced=is_forced)
            | {**own, _TASK: f"{mark}/{task}"}
            for task, share in shares.items()
        }
        variables[cluster.lead] |= _variables_to_report(reporter, None if elsewhere else run_dir / FILE)
        plan = SupervisorPlan(
            command=[as_latin1(word) for word in command],
            tasks=_task_plans(cluster, shares, variables, logs, reporter, alone),
            lead=str(cluster.lead),
            scratch=scratch,
            network_isolation=network_isolation,
            grace=grace,
            linger=grace if linger is None else linger,
            restarts=restarts,
            loads_once=loads_once,
            lost=LOST,
        )
        descriptors = [reporter, *(log.fd for log in logs.values())]
        supervisor = stack.enter_context(started_supervisor(descriptors))
        output = stack.enter_context(
            LaunchOutput(
                cluster,
                logs,
                stream=stream or sys.stdout,
                options=screen or ScreenOptions(),
                events=events,
                metrics=metrics,
            )
        )
        monitor = LaunchMonitor(
            cluster,
            plan,
            output=output,
            logs=logs,
            supervisor=supervisor,
            reports=reports,
            mark=mark,
            heartbeat_timeout=heartbeat_timeout,
        )
        options = {
            "threads": threads,
            "pin": pin,
            "network_isolation": network_isolation,
            "grace": grace,
            "restarts": restarts,
            "heartbeat_timeout": heartbeat_timeout,
            "alone": list(alone),
        }
        where = f"{len(shares)} tasks on other machines" if elsewhere else describe_shares(shares, cores)
        monitor.begin([os.fsdecode(word) for word in command], where, options)
        monitor.say(f"{where}; logs: {short_path(run_dir / 'logs')}")
        if network_isolation == "never" and not elsewhere:
            monitor.warn_of_exposure("network_isolation is 'never'")
        handle_signals_by(monitor.stop)
        supervisor.begin(plan)  # not before: a signal would end this process, and the tasks unsaved
        return monitor.follow()


def _task_plans(
    cluster: ClusterConfig,
    shares: Mapping[Task, Cores],
    variables: Mapping[Task, Mapping[str, str]],
    logs: Mapping[Task, TaskLog],
    reporter: int,
    alone: Collection[str],
) -> list[TaskPlan]:
    return [
        TaskPlan(
            name=str(task),
            env={as_latin1(name): as_latin1(value) for name, value in variables[task].items()},
            mark=f"{_TASK}={variables[task][_TASK]}",
            cores=share.pinned,
            log=logs[task].fd,
            progress=reporter if task == cluster.lead else None,
            serves=cluster.with_task(*task).serves,
            evaluates=task.type == "evaluator",
            alone=task.type in alone,
        )
        for task, share in shares.items()
    ]


def _variables_to_report(reporter: int, events: Path | None) -> dict[str, str]:
    """Return the variables by which the chief reports: to the launcher, an engine's file and the events."""
    told = {
        send_reports.VARIABLE: send_reports.address(reporter),
        **progress_for_engines.inherited_progress_file(),
    }
    return told if events is None else {**told, EVENTS: str(events.absolute())}


def _check(
    cluster: ClusterConfig, command: Sequence[str | os.PathLike[str]], restarts: int, alone: Collection[str]
) -> None:
    if isinstance(command, str) or not command:
        raise ConfigError(
            "command", expected="a program and its arguments, in a list", received=repr(command)
        )
    if not cluster:
        raise ConfigError("launch", expected="a cluster", received="one without tasks")
    if restarts < 0:
        raise ConfigError("restarts", expected="0 or more", received=str(restarts))
    check_alone(cluster, alone)


def check_alone(cluster: ClusterConfig, alone: Collection[str], where: str = "alone") -> None:
    """Raise ConfigError for a role that cannot be started again alone."""
    for role in alone:
        known = dict.fromkeys([*ROLES, *cluster.counts])
        if role not in known:
            raise ConfigError(where, f"there is no {shown(role)}", remedy=did_you_mean(role, known))
        if role == cluster.lead.type:
            problem = f"{cluster.lead} leads the others, which cannot continue without it"
            raise ConfigError(where, problem, remedy=f"Leave {role} out")


def _check_hosts(cluster: ClusterConfig) -> None:
    for task in cluster.tasks():
        host = split_address(cluster.address(task))[0]
        if host not in ("localhost", "::1") and not host.startswith("127."):
            raise ConfigError(
                "launch",
                expected="a cluster on this machine (127.0.0.1)",
                received=cluster.with_address(task),
                remedy="Start each task on its own machine",
            )


@contextlib.contextmanager
def signals_to(handler: _Handler) -> Iterator[None]:
    """Install a handler for the signals that stop a job, in the main thread; ignored signals stay ignored."""
    with signals_restored() as handle_by:
        handle_by(handler)
        yield


@contextlib.contextmanager
def signals_restored() -> Iterator[Callable[[_Handler], None]]:
    """Yield what installs a handler as `signals_to` does, and restore the earlier ones after the block."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda _: None
        return
    before = {number: signal.getsignal(number) for number in (*_STOP_SIGNALS, *stop_signals())}
    replaced = {number: old for number, old in before.items() if old is not signal.SIG_IGN}

    def handle_by(handler: _Handler) -> None:
        for number in replaced:
            signal.signal(number, handler)

    try:
        yield handle_by
    finally:
        for number, old in replaced.items():
            signal.signal(number, old)
