"""Start the tasks of a cluster on this machine, and return how they ended."""

import contextlib
import fcntl
import logging
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Literal, TextIO

from tfdist._utils.files import storage_errors
from tfdist._utils.stop_signal_names import stop_signals
from tfdist.cluster.addresses_and_free_ports import split_address
from tfdist.cluster.config import ClusterConfig, Task
from tfdist.cluster.roles import ROLES
from tfdist.errors import LOST, ConfigError, did_you_mean, shown
from tfdist.launcher import chief_reports, progress_file
from tfdist.launcher.console import ScreenOptions
from tfdist.launcher.environment import LAUNCH, SECRET, task_environment
from tfdist.launcher.launch_monitor import LaunchMonitor, TaskLog
from tfdist.launcher.outcome import LaunchReport
from tfdist.launcher.progress_text import short_path
from tfdist.launcher.prometheus_metrics import PrometheusMetrics
from tfdist.launcher.record_events import VARIABLE as EVENTS
from tfdist.launcher.record_events import EventFile
from tfdist.launcher.resources import Cores, describe_shares, own_cores, share_cores
from tfdist.launcher.run_events import FILE
from tfdist.launcher.start_supervisor import as_latin1, started_supervisor

__all__ = ["SECONDS_FOR_THE_EVALUATOR", "SECRET", "NetworkIsolation", "launch", "signals_to", "task_log_path"]

NetworkIsolation = Literal["auto", "always", "never"]
SECONDS_FOR_THE_EVALUATOR = 600.0  # to evaluate the last checkpoint after the chief has ended

# The variable that marks what a task has started, also if that has begun its own session.
_TASK = "TFDIST_TASK"

_log = logging.getLogger("tfdist")

_STOP_SIGNALS = (signal.SIGINT, signal.SIGHUP)  # and those that stop a task


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
    grace: float = 30.0,
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
    all tasks; a second signal kills them.

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
        LaunchError: if a task failed, or a signal stopped the job.
    """
    _check(cluster, command, restarts, alone)
    if not elsewhere:
        _check_hosts(cluster)
    cores = own_cores() if cores is None else cores
    shares = share_cores(cluster, cores=cores, gpus=gpus, threads=threads, pin=pin)
    mark = os.urandom(8).hex()
    with contextlib.ExitStack() as stack:
        logs = stack.enter_context(_opened_logs(cluster, run_dir))
        with storage_errors(run_dir / FILE):
            events = stack.enter_context(contextlib.closing(EventFile(run_dir / FILE)))
        reports, reporter = stack.enter_context(_pipe())
        # A killed task leaves its temporary files here; TensorFlow's AutoGraph writes one for each function.
        scratch = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="tfdist-", ignore_cleanup_errors=True)
        )
        for_lead = _variables_to_report(reporter, None if elsewhere else run_dir / FILE)
        for_all = {LAUNCH: mark, SECRET: os.urandom(32).hex()}
        tasks = []
        for task, share in shares.items():
            environment = task_environment(
                cluster, task, share, {"TMPDIR": scratch}, env, is_width_forced=threads is not None
            )
            environment |= {**for_all, _TASK: f"{mark}/{task}", **(for_lead if task == cluster.lead else {})}
            task_plan = _task_plan(cluster.with_task(*task), environment, share, logs[task], reporter)
            tasks.append({**task_plan, "alone": task.type in alone})
        plan: dict[str, Any] = {
            "network_isolation": network_isolation,
            "restarts": restarts,
            "heartbeat_timeout": heartbeat_timeout,
            "command": [as_latin1(word) for word in command],
            "tasks": tasks,
            "lead": str(cluster.lead),
            "scratch": scratch,
            "grace": grace,
            "linger": grace if linger is None else linger,
            "loads_once": loads_once,
            "lost": LOST,
        }
        descriptors = [reporter, *(log.fd for log in logs.values())]
        supervisor = stack.enter_context(started_supervisor(plan, descriptors))
        out, screen = stream or sys.stdout, screen or ScreenOptions()
        monitor = LaunchMonitor(cluster, logs, supervisor, reports, out, plan, mark, events, screen, metrics)
        stack.enter_context(monitor)
        where = f"{len(tasks)} tasks on other machines" if elsewhere else describe_shares(shares, cores)
        common = {key: plan[key] for key in ("network_isolation", "restarts", "heartbeat_timeout")}
        options = {"threads": threads, "pin": pin, **common, "alone": list(alone)}
        monitor.begin([os.fsdecode(word) for word in command], where, options)
        monitor.say(f"{where}; logs: {short_path(run_dir / 'logs')}")
        if network_isolation == "never" and not elsewhere:
            monitor.warn_of_exposure("network_isolation is 'never'")
        with signals_to(monitor.stop):
            return monitor.follow()


def _variables_to_report(reporter: int, events: Path | None) -> dict[str, str]:
    """Return the variables by which the chief reports: to the launcher, an engine's file and the events."""
    told = {chief_reports.VARIABLE: chief_reports.address(reporter), **progress_file.variables()}
    return told if events is None else {**told, EVENTS: str(events.absolute())}


def _task_plan(
    cluster: ClusterConfig, environment: Mapping[str, str], share: Cores, log: TaskLog, reporter: int
) -> dict[str, Any]:
    """Return what the supervisor must know about a task."""
    return {
        "name": str(cluster.task),
        "env": {as_latin1(name): as_latin1(value) for name, value in environment.items()},
        "mark": f"{_TASK}={environment[_TASK]}",
        "cores": share.pinned,
        "log": log.fd,
        "progress": reporter if chief_reports.VARIABLE in environment else None,
        "serves": cluster.serves,
    }


def _check(
    cluster: ClusterConfig,
    command: Sequence[str | os.PathLike[str]],
    restarts: int,
    alone: Collection[str],
) -> None:
    if isinstance(command, str) or not command:
        raise ConfigError(
            "command", expected="a program and its arguments, in a list", received=repr(command)
        )
    if not cluster:
        raise ConfigError("launch", expected="a cluster", received="one without tasks")
    if restarts < 0:
        raise ConfigError("restarts", expected="0 or more", received=str(restarts))
    for role in alone:
        known = dict.fromkeys([*ROLES, *(task.type for task in cluster.tasks())])
        if role not in known:
            raise ConfigError("alone", f"there is no {shown(role)}", remedy=did_you_mean(role, known))
        if role == cluster.lead.type:
            problem = f"{cluster.lead} leads the others, which cannot continue without it"
            raise ConfigError("alone", problem, remedy=f"Leave {role} out")


def _check_hosts(cluster: ClusterConfig) -> None:
    for task in cluster.tasks():
        host = split_address(cluster.address(task))[0]
        if host not in ("localhost", "::1") and not host.startswith("127."):
            raise ConfigError(
                "launch",
                expected="a cluster on this machine (127.0.0.1)",
                received=f"{task} at {cluster.address(task)}",
                remedy="Start each task on its own machine",
            )


@contextlib.contextmanager
def _opened_logs(cluster: ClusterConfig, run_dir: Path) -> Iterator[dict[Task, TaskLog]]:
    with contextlib.ExitStack() as stack:
        logs = {}
        for task in cluster.tasks():
            path = task_log_path(run_dir, task)
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                # Append: a run that continues an earlier one keeps the earlier log.
                file = stack.enter_context(open(path, "ab", 0))
            except OSError as error:
                problem = f"cannot write {path}: {error.strerror}"
                raise ConfigError("run_dir", problem, remedy="Choose one that you may write to") from None
            _lock(file.fileno(), path)
            logs[task] = TaskLog(path, file.fileno(), file.seek(0, os.SEEK_END))
        yield logs


def task_log_path(run_dir: Path, task: Task | str) -> Path:
    """Return the file with the output of a task, such as `worker:1`."""
    return run_dir / "logs" / f"{str(task).replace(':', '-')}.log"


def _lock(log: int, path: Path) -> None:
    """Lock the folder against other launches for as long as this launch or any of its processes lives."""
    try:
        # The tasks inherit the descriptor, and the lock with it.
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        problem = f"another launch is writing {path}"
        raise ConfigError("run_dir", problem, remedy="Choose another one, or end that launch") from None
    except OSError as error:  # a file system without locks
        _log.warning(
            "cannot lock %s (%s): two launches there would not notice each other", path, error.strerror
        )


@contextlib.contextmanager
def _pipe() -> Iterator[tuple[int, int]]:
    """Yield the two ends of a pipe that never blocks."""
    ends = os.pipe()
    try:
        for end in ends:
            os.set_blocking(end, False)
        yield ends
    finally:
        for end in ends:
            os.close(end)


@contextlib.contextmanager
def signals_to(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Install a handler for the signals that stop a job, in the main thread; ignored signals stay ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (*_STOP_SIGNALS, *stop_signals())}
    replaced = {number: old for number, old in before.items() if old is not signal.SIG_IGN}
    try:
        for number in replaced:
            signal.signal(number, handler)
        yield
    finally:
        for number, old in replaced.items():
            signal.signal(number, old)
