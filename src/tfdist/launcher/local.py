"""Start the tasks of a cluster on this machine, and give back how they ended."""

import contextlib
import fcntl
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Literal, TextIO

from tfdist import onednn
from tfdist.addresses import split_address
from tfdist.cluster import ClusterConfig, Task
from tfdist.environments import ROLES
from tfdist.errors import ConfigError, did_you_mean, shown
from tfdist.launcher import progress
from tfdist.launcher.cores import Cores, own_cores, share_cores, told
from tfdist.launcher.job import LAUNCH, Job, TaskLog
from tfdist.launcher.outcome import LaunchReport

__all__ = ["SECRET", "launch"]

# What the tasks of a launch know, and nobody else.
SECRET = "TFDIST_SECRET"  # noqa: S105

_log = logging.getLogger("tfdist")

# What schedulers tell a process of its place in their cluster would contradict the TF_CONFIG of a task.
_OTHER_CLUSTERS = re.compile(
    r"CLUSTER_SPEC|SM_(HOSTS|CURRENT_HOST|RESOURCE_CONFIG)|(SLURM|OMPI|PMI|PMIX)_.*"
    r"|JOB_COMPLETION_INDEX|JOBSET_NAME|REPLICATED_JOB_NAME|TFDIST_(SERVICE|HOSTS|PROGRESS)|TF_CONFIG"
)
# Only the standard library; what else lies beside the warden comes after that.
_WARDEN = """
import sys
sys.path.append(sys.argv[1])
from warden.main import main
main(int(sys.argv[2]), int(sys.argv[3]))
"""
_STOPPED_BY = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_FOR_PYTHON = {
    "PYTHONUNBUFFERED": "1",  # or a SIGKILL would take the last lines with it
    "PYTHONFAULTHANDLER": "1",  # the log of a crash in TensorFlow's C++ ends with the lines of Python
}


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
    isolate: Literal["auto", "always", "never"] = "auto",
    grace: float = 30.0,
    linger: float | None = None,
    restarts: int = 0,
    alone: Collection[str] = ("evaluator",),
    silence: float | None = None,
    loads_once: bool = False,
    stream: TextIO | None = None,
) -> LaunchReport:
    """Run the same command as every task of a cluster on this machine, and wait for the end of all.

    The job is done when the chief, or worker 0 where there is no chief, has ended with 0 and the others have
    ended too. The first task that fails makes an end of the others. SIGINT, SIGTERM and SIGHUP end all tasks;
    a second one kills them.

    A task that a signal ends, or that ends with 138, is lost. It is started again, with all the others or, if
    they can go on without it, alone; so often in all as `restarts` says.

    Args:
        cluster: The cluster; all its addresses are on this machine.
        command: The program and its arguments; no shell reads them.
        run_dir: Where the logs go: `logs/<type>-<index>.log`, which are added to if they exist.
        env: Variables for all tasks, which win over those of this process.
        threads: The threads of each task. Without, the cores are shared out (see `share_cores`), except where
            this process has TF_NUM_INTRAOP_THREADS, TF_NUM_INTEROP_THREADS or OMP_NUM_THREADS.
        cores: The numbers of the cores that are shared out; without, those that this process may use.
        gpus: The GPUs, as CUDA names them; without, those that this process may use.
        pin: Whether to bind each task that computes to cores of its own.
        isolate: Whether the tasks live in a private network: "auto" if it can be had, "always" or fail.
        grace: How many seconds a task has to end after SIGTERM.
        linger: How many seconds the others have to end after the chief; without, as many as `grace`.
        restarts: How often, in all, tasks that are lost are started again.
        alone: The types of tasks that are started again alone, the others going on meanwhile.
        silence: How many seconds a task may be stopped until it is killed, and so lost; None: for ever.
        loads_once: Whether the command calls `raise_tasks`, which loads a module once for all tasks.
        stream: Where to show what happens; without, the standard output.

    Raises:
        ConfigError: if the command cannot be started, the logs not be written, or the cluster not run here.
        LaunchError: if a task failed, or a signal stopped the job.
    """
    _check(cluster, command, restarts, alone)
    cores = own_cores() if cores is None else cores
    shares = share_cores(cluster, cores=cores, gpus=gpus, threads=threads, pin=pin)
    mark, secret = os.urandom(8).hex(), os.urandom(32).hex()
    with contextlib.ExitStack() as stack:
        logs = stack.enter_context(_opened_logs(cluster, run_dir))
        reports, reporter = stack.enter_context(_pipe())
        # A task that is killed leaves what it had there; TensorFlow's AutoGraph has a file for each function.
        scratch = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="tfdist-", ignore_cleanup_errors=True)
        )
        tasks = []
        for task in cluster.tasks():
            width = shares[task].environment()
            own = {"TF_CONFIG": cluster.tf_config_json(*task), LAUNCH: f"{mark}/{task}", SECRET: secret}
            if task == cluster.lead:
                own[progress.VARIABLE] = progress.address(reporter)
            forced = width if threads else {}
            given = {**_inherited(), "TMPDIR": scratch, **shares[task].visible(), **forced, **(env or {})}
            environment = {**width, **onednn.variables(), **_FOR_PYTHON, **given, **own}
            of_it = _task_plan(cluster.with_task(*task), environment, shares[task], logs[task], reporter)
            tasks.append({**of_it, "alone": task.type in alone})
        plan = {
            "command": [_characters(word) for word in command],
            "tasks": tasks,
            "lead": str(cluster.lead),
            "scratch": scratch,
            "isolate": isolate,
            "grace": grace,
            "linger": grace if linger is None else linger,
            "restarts": restarts,
            "silence": silence,
            "loads_once": loads_once,
        }
        control = stack.enter_context(_warden(plan, [reporter, *(log.fd for log in logs.values())]))
        job = stack.enter_context(Job(cluster, logs, control, reports, stream or sys.stdout, plan, mark))
        job.say(f"{told(shares, cores)}; logs: {run_dir / 'logs'}")
        if isolate == "never":
            job.warn_of_exposure("isolate is 'never'")
        with _signals_to(job.stop):
            return job.follow()


def _task_plan(
    cluster: ClusterConfig, environment: Mapping[str, str], share: Cores, log: TaskLog, reporter: int
) -> dict[str, Any]:
    """Say what the warden has to know of a cluster's task."""
    return {
        "name": str(cluster.task),
        "env": {_characters(name): _characters(value) for name, value in environment.items()},
        "mark": f"{LAUNCH}={environment[LAUNCH]}",
        "cores": share.pinned,
        "log": log.fd,
        "progress": reporter if progress.VARIABLE in environment else None,
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
            problem = f"{cluster.lead} leads the others, which cannot go on without it"
            raise ConfigError("alone", problem, remedy=f"Leave {role} out")
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
            path = run_dir / "logs" / f"{task.type}-{task.index}.log"
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                # Added to, for a run that goes on with an earlier one keeps the log of that.
                file = stack.enter_context(open(path, "ab", 0))
            except OSError as error:
                problem = f"cannot write {path}: {error.strerror}"
                raise ConfigError("run_dir", problem, remedy="Give one that you may write to") from None
            _claim(file.fileno(), path)
            logs[task] = TaskLog(path, file.fileno(), file.seek(0, os.SEEK_END))
        yield logs


def _claim(log: int, path: Path) -> None:
    """Keep another launch out of the directory for as long as this launch or anything of it lives."""
    try:
        # The tasks inherit the descriptor, and the lock with it.
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        problem = f"another launch is writing {path}"
        raise ConfigError("run_dir", problem, remedy="Give another one, or end that launch") from None
    except OSError as error:  # a file system that has no locks
        _log.warning(
            "cannot lock %s (%s): two launches there would not notice each other", path, error.strerror
        )


@contextlib.contextmanager
def _pipe() -> Iterator[tuple[int, int]]:
    """Give the two ends of a pipe that never makes anybody wait."""
    ends = os.pipe()
    try:
        for end in ends:
            os.set_blocking(end, False)
        yield ends
    finally:
        for end in ends:
            os.close(end)


def _inherited() -> dict[str, str]:
    """Give this process's variables without those that would lead a task astray."""
    kept = {name: value for name, value in os.environ.items() if not _OTHER_CLUSTERS.fullmatch(name)}
    # With http_proxy set, TensorFlow's servers look for each other through the proxy for ever, even here.
    # Where no_grpc_proxy is set, no_proxy is not asked: it has to say all of that too.
    direct = [kept.get("no_grpc_proxy") or kept.get("no_proxy", ""), "127.0.0.1", "localhost", "::1"]
    return {**kept, "no_grpc_proxy": ",".join(filter(None, direct))}


@contextlib.contextmanager
def _warden(plan: Mapping[str, Any], descriptors: Sequence[int]) -> Iterator[socket.socket]:
    """Start the warden with a plan, and give the socket to it; at the end it ends whatever it still has."""
    control, its_end = socket.socketpair()
    with control:
        with its_end:
            arguments = Path(__file__).parent, its_end.fileno(), os.getpid()
            process = subprocess.Popen(
                # -I -S: neither the user's variables nor their site-packages have a say in it.
                [sys.executable, "-I", "-S", "-c", _WARDEN, *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[its_end.fileno(), *descriptors],
                start_new_session=True,  # Ctrl-C on the terminal is for the launcher alone
            )
        try:
            with contextlib.suppress(ConnectionError):  # somebody killed it, as Job.follow will find out
                control.sendall(json.dumps(plan).encode() + b"\n")
            yield control
        finally:
            control.close()
            process.wait()


@contextlib.contextmanager
def _signals_to(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Hand the signals that stop a job to a handler, in the main thread; ignored ones stay ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _STOPPED_BY}
    taken = {number: old for number, old in before.items() if old is not signal.SIG_IGN}
    try:
        for number in taken:
            signal.signal(number, handler)
        yield
    finally:
        for number, old in taken.items():
            signal.signal(number, old)


def _characters(word: str | os.PathLike[str]) -> str:
    """Give the bytes of a word as one character each, as the warden wants them."""
    return os.fsencode(word).decode("latin-1")
