"""Serve the chief, as another task of its cluster, until the chief ends."""

import contextlib
import logging
import os
import time
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdist.cluster.addresses_and_free_ports import port_taken
from tfdist.cluster.config import ClusterConfig, Task
from tfdist.coordination.background_threads import end_process
from tfdist.coordination.cluster_traffic import reporting_traffic
from tfdist.coordination.end_announcements import announce_termination, is_shutdown_told, was_dismissed
from tfdist.coordination.end_stalled_workers import let_chief_end_this_worker
from tfdist.coordination.grpc_health_probe import SilenceClock, answers
from tfdist.coordination.only_peers import admitting_only_peers
from tfdist.coordination.stop_signals import Notice, handling_stop_signals
from tfdist.coordination.wait_for_tasks import START_TIMEOUT, await_servers
from tfdist.errors import ConfigError, Preempted, TaskLost
from tfdist.launcher.environment import DEFAULT_GRACE, GRACE, LAUNCH, reach_directly
from tfdist.profiling.cluster_recording import offer_to_record
from tfdist.strategies.cpu_malloc import keep_memory
from tfdist.strategies.devices_and_threads import check_device, server_config
from tfdist.strategies.options import Device
from tfdist.transport.listen_and_call import ConnectError
from tfdist.transport.worker_and_ps_ends import open_endpoint

_log = logging.getLogger("tfdist")

_SECONDS_BETWEEN_PROBES = 1.0
_MOST_LATER = 5.0  # seconds by which its last look at the chief may be later than the chief's at it
_SECONDS_WHEN_TOLD_TO_END = 0.1  # the sender of the signal waits
_SECONDS_TO_END = 5.0  # of the grace


def serve(
    cluster: ClusterConfig,
    *,
    device: Device = "auto",
    memory_growth: bool | None = None,
    start_timeout: float = START_TIMEOUT,
    heartbeat_timeout: float = 60.0,
    stays: bool = False,
) -> None:
    """Run this task's server until the chief ends or dismisses this task, then return.

    The chief calls `connect`, or `make_strategy` on a cluster with ps tasks. This task asks the chief once a
    second whether it is alive, and returns within about 5 seconds after the chief's process has ended, with
    or without success. The chief's own exit status tells whether the work succeeded. End the script then;
    TensorFlow's server stops with the process.

    After SIGTERM, this task continues to serve for as long as the chief may need to save its work.

    Args:
        cluster: The cluster. It has a chief, and this task is neither the chief nor the evaluator.
        device: The device to compute on: cpu, gpu, or auto, which takes GPUs if there are any; no GPU on ps.
        memory_growth: Allocate GPU memory when it is needed, not all at once.
        start_timeout: Seconds that the chief may take to start.
        heartbeat_timeout: Seconds without an answer after which the chief, or its machine, counts as lost.
        stays: Whether to wait, after the chief was killed or lost, for it to start again, and serve it.

    Raises:
        ConfigError: This task serves no chief, its port is taken, or device is gpu and it has none.
        TaskLost: The chief did not start in time, did not answer in time, or was killed. The process of a
            worker beside ps tasks does not raise this for a silent chief: it ends at once, with status 138.
        Preempted: This task was told to end. The process of a worker beside ps tasks ends at once instead.
    """
    _check_task(cluster)
    if cluster.task is not None and cluster.task.type == "ps":
        device, memory_growth = "cpu", None  # it computes nothing, and would take all of a GPU's memory
    else:
        keep_memory()
    check_device(device, memory_growth=memory_growth)
    reach_directly(cluster)
    offer_to_record(cluster)
    with reporting_traffic(cluster), _tcp_transport(cluster, heartbeat_timeout):
        let_chief_end_this_worker()
        with admitting_only_peers(cluster):
            server = _start(cluster, server_config(device, memory_growth=memory_growth))
        _log.info("%s serves at %s", cluster.task, server.target)
        _serve(cluster, start_timeout, heartbeat_timeout, stays=stays)
    _log.info("the chief has ended, so %s ends too", cluster.task)


def _serve(cluster: ClusterConfig, start_timeout: float, heartbeat_timeout: float, *, stays: bool) -> None:
    """Wait until the chief ends or dismisses this task."""
    chief = cluster.address(("chief", 0))
    is_worker = bool(cluster.ps) and cluster.task is not None and cluster.task.type == "worker"
    # A worker gives up before its chief does. After the chief has given its steps to others, those that it
    # would still do would count twice. An elastic cluster restarts without it, and takes it in again.
    gives_up_first = is_worker and not stays
    while True:
        # A chief that fails at once may start and end between two health checks.
        await_servers("serve", cluster, [Task("chief", 0)], start_timeout, unless=is_shutdown_told)
        _log.info("%s has found the chief at %s", cluster.task, chief)
        with handling_stop_signals() as notice, notice.deferred():
            _wait_until_gone(cluster, heartbeat_timeout, notice, gives_up_first=gives_up_first)
        if is_shutdown_told() or was_dismissed():
            break
        _end_if_told(notice, at_once=is_worker)
        if not stays:
            remedy = "Its own log says why; start this task again with it"
            raise TaskLost(f"chief at {chief}", "is gone: killed, or lost with its machine", remedy=remedy)
        _log.warning("the chief at %s is gone without notice: waiting for it to start again", chief)


def _end_if_told(notice: Notice, *, at_once: bool) -> None:
    """Raise Preempted if this task was told to end, or end its process at once.

    A worker beside ps ends at once. TensorFlow's server would still run steps while Python ends the process,
    without the connections to the ps: the chief would take their errors for errors of the program.
    """
    try:
        notice.raise_if_received()
    except Preempted as error:
        if at_once:
            end_process(error)
        raise


@contextlib.contextmanager
def _tcp_transport(cluster: ClusterConfig, heartbeat_timeout: float) -> Iterator[None]:
    """Open this task's end of the TCP transport, if the task takes part in it."""
    try:
        endpoint = open_endpoint(cluster, heartbeat_timeout, lambda: is_shutdown_told() or was_dismissed())
    except ConnectError as error:
        _log.warning("%s uses TensorFlow's gRPC instead of the TCP transport: %s", cluster.task, error)
        endpoint = None
    try:
        yield
    finally:
        if endpoint is not None:
            endpoint.close()  # what waits in it would outlast this process's end


def _part_for_chief(grace: float) -> float:
    """Return how long to serve a chief that saves; the rest of the grace is for this task's own end."""
    return grace - min(_SECONDS_TO_END, grace / 6)


def _wait_until_gone(cluster: ClusterConfig, timeout: float, notice: Notice, *, gives_up_first: bool) -> None:
    chief = cluster.address(("chief", 0))
    silence, refusals, told_at = SilenceClock(), 0, float("inf")
    looked_at, patience = time.monotonic(), timeout
    for_chief_to_save = _part_for_chief(float(os.environ.get(GRACE, DEFAULT_GRACE)))
    if gives_up_first:
        patience = max(timeout / 2, timeout - _MOST_LATER)
    while refusals < 2 and not was_dismissed():  # twice, because a listener with a full queue refuses too
        if gives_up_first:
            looked_at = _check_was_running(cluster, looked_at, patience)
        answer = answers(chief)
        # The host may be gone with the chief, as a container's is. Then nothing refuses a connection.
        if not answer and is_shutdown_told():
            return
        now = time.monotonic()
        refusals = refusals + 1 if answer is False else 0
        silent_for = silence.after(answer)
        if notice.is_received and told_at > now:
            told_at = now
            announce_termination()
        if now - told_at > for_chief_to_save:
            return
        if silent_for > patience:
            remedy = "It is stopped, or its machine cannot be reached"
            lost = TaskLost(f"chief at {chief}", f"has been silent for {patience:g} s", remedy=remedy)
            if gives_up_first:
                end_process(lost)
            raise lost
        probes_at = time.monotonic() + _SECONDS_BETWEEN_PROBES
        time.sleep(_SECONDS_WHEN_TOLD_TO_END)
        while time.monotonic() < probes_at and not notice.is_received:  # a signal ends no time.sleep
            time.sleep(_SECONDS_WHEN_TOLD_TO_END)


def _check_was_running(cluster: ClusterConfig, looked_at: float, patience: float) -> float:
    """End this worker if it was stopped for so long that the chief may count it as lost; return the time.

    It ends at once. While Python ends a process, TensorFlow's server still runs steps, and each operation in
    Python fails: the chief would take this for an error of the program.

    A launcher kills the tasks that its chief misses. It may also have been stopped with all of them.
    """
    now = time.monotonic()
    stopped_for = now - looked_at
    if LAUNCH not in os.environ and stopped_for > patience:
        problem = f"was stopped for {stopped_for:.0f} s, and counts as lost"
        end_process(TaskLost(str(cluster.task), problem, remedy="Start it again"))
    return now


def _check_task(cluster: ClusterConfig) -> None:
    task = cluster.task
    if task is None:
        remedy = "Set its task: cluster.with_task('ps', 0)"
        raise ConfigError("serve", "needs to know which task of the cluster this is", remedy=remedy)
    if not cluster.chief:
        problem = f"is missing: {task} would have no chief to serve"
        raise ConfigError(cluster.source.at("chief"), problem, remedy="Add a chief, or call make_strategy")
    if task.type in ("chief", "evaluator"):
        remedy = (
            "Call make_strategy on it, or connect"
            if task.type == "chief"
            else "It reads checkpoints; see fit"
        )
        raise ConfigError("serve", f"is for tasks that serve the chief, but this is {task}", remedy=remedy)


def _start(cluster: ClusterConfig, config: Any) -> tf.distribute.Server:
    task_type, index = cluster.task or ("", 0)
    try:
        return tf.distribute.Server(
            cluster.cluster_spec(), job_name=task_type, task_index=index, protocol="grpc", config=config
        )
    except tf.errors.OpError as error:
        if "gRPC server" not in str(error):  # such as that of a GPU that is full
            raise
        raise port_taken(str(cluster.task), cluster.address((task_type, index))) from error
