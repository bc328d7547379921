"""Run on a host: tell what it has, or run one task for as long as the connection lasts.

The standard input brings the order, then an empty line now and then, and `end`. Its end, or a long silence,
ends the task and all its processes. The standard output is the task's log. The standard error has the
chief's reports for the launcher, one JSON object per line.
"""

import contextlib
import importlib.metadata
import json
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

import tfdist
from tfdist._utils.write_files import storage_errors, temporary_folder
from tfdist.cluster.addresses_and_free_ports import LocalPorts
from tfdist.cluster.config import ClusterConfig, Task
from tfdist.engines.job_description import CONFIG, PYTHON, RUN_DIR
from tfdist.engines.ssh.plan_file import NO_CONNECTION, Order, write_private
from tfdist.errors import LOST, exit_with_status
from tfdist.launcher import send_reports
from tfdist.launcher.environment import GRACE, LAUNCH, SECRET, task_environment
from tfdist.launcher.share_cores_and_gpus import share_cores
from tfdist.launcher.start_supervisor import SupervisorProcess, started_supervisor
from tfdist.launcher.supervisor.plan import SupervisorPlan, TaskPlan, as_latin1

SECONDS_OF_SILENCE = 60.0  # of the other end, after which its machine counts as gone
_SECONDS_FOR_LAST_REPORTS = 5.0
_PACKAGES = ("tensorflow", "tensorflow-cpu", "tensorflow-macos", "tensorflow-rocm", "tf-nightly")


def main(words: list[str]) -> int:
    """Run `check COUNT` or `run`; return the exit status."""
    match words:
        case ["check", count]:
            print(json.dumps(_found(int(count))))
            return 0
        case ["run"]:
            order, rest = _read_order()
            with temporary_folder("tfdist-") as scratch:
                return _run(order, rest, Path(scratch))
    print("tfdist: tfdist.engines.ssh.task_on_host: expected check COUNT, or run", file=sys.stderr)
    return 2


def _found(ports: int) -> dict[str, Any]:
    """Return what the machine that submits wants to know."""
    tensorflow = next(filter(None, map(_version, _PACKAGES)), "")
    versions = {"tfdist": tfdist.__version__, "tensorflow": tensorflow, "keras": _version("keras")}
    return {**versions, "ports": LocalPorts(ports).ports}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _read_order() -> tuple[Order, bytes]:
    """Return the order, and what has come after it."""
    data = b""
    while b"\n" not in data:
        if not (more := os.read(0, 65536)):
            sys.exit(LOST)  # the other end was killed
        data += more
    line, _, rest = data.partition(b"\n")
    return msgspec.json.decode(line, type=Order), rest


def _run(order: Order, received: bytes, scratch: Path) -> int:
    """Run the task; return its exit status."""
    log = os.dup(1)
    reports, reporter = send_reports.open_pipe()
    plan = _supervisor_plan(order, _variables(order, scratch, reporter), scratch, log, reporter)
    with started_supervisor([log, reporter]) as supervisor:
        supervisor.begin(plan)
        for fd in (log, reporter):
            os.close(fd)
        # A thread: a slow connection does not delay the end of the task.
        sender = threading.Thread(target=_send_reports, args=[reports], daemon=True)
        sender.start()
        status = _relay(supervisor, received, order.task)
    sender.join(_SECONDS_FOR_LAST_REPORTS)
    return status


def _send_reports(reports: int) -> None:
    """Send all reports over the connection, as fast as that takes them."""
    os.set_blocking(reports, True)
    with contextlib.suppress(OSError):  # the connection is lost
        while data := os.read(reports, 1 << 16):
            while data:
                data = data[os.write(2, data) :]


def _variables(order: Order, scratch: Path, reporter: int) -> dict[str, str]:
    cluster = ClusterConfig.from_environment(environ={"TF_CONFIG": order.tf_config})
    plan, task = order.plan, Task.parse(order.task)
    here = [Task.parse(name) for name in plan.tasks_on(plan.tasks[order.task])]
    # Of `python`, the one of this environment.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    share = share_cores(cluster, here=here, threads=plan.threads)[task]
    defaults = {"TMPDIR": str(scratch), "PATH": path}
    is_width_forced = plan.threads is not None
    variables = task_environment(cluster, task, share, defaults, None, is_width_forced=is_width_forced)
    variables["no_grpc_proxy"] = ",".join([variables["no_grpc_proxy"], *plan.addresses.values()])
    if task == cluster.lead:
        variables[send_reports.VARIABLE] = send_reports.address(reporter)
    if plan.is_single:
        del variables["TF_CONFIG"]
    mark = os.urandom(8).hex()
    return {**variables, SECRET: order.secret, LAUNCH: mark, GRACE: f"{plan.grace:g}"}


def _supervisor_plan(
    order: Order, variables: Mapping[str, str], scratch: Path, log: int, reporter: int
) -> SupervisorPlan:
    """Return the plan of a supervisor of one task, which it does not start again by itself."""
    config = scratch / order.plan.config_name
    if order.plan.config is not None:
        with storage_errors(config):
            write_private(config, order.plan.config.encode())
    meant = {PYTHON: sys.executable, CONFIG: str(config), RUN_DIR: order.run_dir}
    task = TaskPlan(
        name=order.task,
        env={as_latin1(name): as_latin1(value) for name, value in variables.items()},
        mark=f"{LAUNCH}={variables[LAUNCH]}",
        cores=(),
        log=log,
        progress=reporter if send_reports.VARIABLE in variables else None,
        serves=False,
        evaluates=False,
        alone=False,
    )
    return SupervisorPlan(
        command=[as_latin1(meant.get(word, word)) for word in order.plan.command],
        tasks=[task],
        lead=order.task,
        scratch=str(scratch),
        network_isolation="never",
        grace=order.plan.grace,
        linger=order.plan.grace,
        restarts=0,
        loads_once=False,
        lost=LOST,
    )


def _relay(supervisor: SupervisorProcess, received: bytes, task: str) -> int:
    """Pass on the word `end`, and return the exit status; then the task is ended."""
    poll = select.poll()
    control = supervisor.control.fileno()
    for fd in (0, control):
        poll.register(fd, select.POLLIN)
    heard_at, status = time.monotonic(), LOST
    while True:
        if b"end\n" in received:
            supervisor.send("end")
            received = b""
        remaining = heard_at + SECONDS_OF_SILENCE - time.monotonic()
        ready = {fd for fd, _ in poll.poll(max(remaining, 0) * 1000)}
        if 0 in ready:
            data = os.read(0, 65536)
            if not data:
                return LOST
            received, heard_at = received + data, time.monotonic()
        elif remaining <= 0:
            return LOST
        if control in ready:
            for event in supervisor.received():
                if "ended" in event:
                    return status
                status = _status(event, task, status)
            if supervisor.is_gone:
                return LOST  # it was killed


def _status(event: Mapping[str, Any], task: str, status: int) -> int:
    """Return the exit status after an event of the supervisor."""
    match event:
        case {"unstartable": _, "error": reason, "program": program}:
            print(f"tfdist: command: {task} cannot start {program!r}: {reason}", flush=True)
            return 2
        case {"exited": _, "code": code} if code < 0:
            print(f"tfdist: {task} on {socket.gethostname()}: ended by signal {-code}", flush=True)
            return LOST
        case {"exited": _, "code": code}:
            return 1 if code == NO_CONNECTION else int(code)
    return status


if __name__ == "__main__":
    exit_with_status(lambda: main(sys.argv[1:]))
