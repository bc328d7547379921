"""Serve the chief as another task of its cluster, for as long as it lives."""

import contextlib
import logging
import time
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdist.addresses import port_taken
from tfdist.allocation import keep_memory
from tfdist.awaiting import await_servers
from tfdist.cluster import ClusterConfig, Task
from tfdist.departures import announce_departure
from tfdist.devices import Device, check_device, server_config
from tfdist.errors import ConfigError, TaskLost
from tfdist.exchange import Unmet, open_post
from tfdist.farewell import farewell_was_said, was_dismissed
from tfdist.preemption import Notice, hearing_notice
from tfdist.probing import answers
from tfdist.traffic import telling_traffic

__all__ = ["serve"]

_log = logging.getLogger("tfdist")

_SECONDS_BETWEEN_PROBES = 1.0
_SECONDS_WHEN_TOLD_TO_END = 0.1  # who has told it waits
# Less than the 30 s that Kubernetes, Slurm and our launcher give before SIGKILL.
_SECONDS_FOR_THE_CHIEF_TO_SAVE = 25.0


def serve(
    cluster: ClusterConfig,
    *,
    device: Device = "auto",
    memory_growth: bool | None = None,
    start_timeout: float = 600.0,
    silence_timeout: float = 60.0,
    stays: bool = False,
) -> None:
    """Run this task's server until the chief has ended or lets it go, then return.

    The chief has called `connect`, or `make_strategy` on a cluster with ps tasks. It is asked once a second
    whether it is there. When its process has ended, well or not, this returns within about 5 seconds: whether
    the work succeeded is told by the chief's own exit status. End the script then; TensorFlow's server stops
    with the process.

    Told to end (SIGTERM), it serves on for as long as the chief may need to save its work.

    Args:
        cluster: The cluster; it has a chief, and its task is any other but the evaluator.
        device: What this task computes on: gpu, or cpu, or GPUs where there are any. A ps leaves them alone.
        memory_growth: Take GPU memory as it is needed, not all at once.
        start_timeout: Seconds that the chief may take to come up.
        silence_timeout: Seconds that the chief, or its machine, may be silent.
        stays: Wait for a chief that is gone without a word to come again, as for the first one, and serve it.

    Raises:
        ConfigError: This task serves nobody, its port is taken, or it is to compute on a GPU and has none.
        TaskLost: The chief did not come up or was silent for longer than it may, or was killed.
        Preempted: This task was told to end.
    """
    _check_task(cluster)
    if cluster.task is not None and cluster.task.type == "ps":
        device, memory_growth = "cpu", None  # it computes nothing, and would take all of a GPU's memory
    else:
        keep_memory()
    check_device(device, memory_growth=memory_growth)
    with telling_traffic(cluster), _posting(cluster):
        server = _start(cluster, server_config(device, memory_growth=memory_growth))
        _log.info("%s serves at %s", cluster.task, server.target)
        _serve(cluster, start_timeout, silence_timeout, stays=stays)
    _log.info("the chief has ended, and so does %s", cluster.task)


def _serve(cluster: ClusterConfig, start_timeout: float, silence_timeout: float, *, stays: bool) -> None:
    """Return when the chief has ended or lets this task go."""
    chief = cluster.address(("chief", 0))
    while True:
        # A chief that fails at once may have come and gone between two questions.
        await_servers("serve", cluster, [Task("chief", 0)], start_timeout, unless=farewell_was_said)
        with hearing_notice() as notice, notice.deferred():
            _wait_until_gone(chief, silence_timeout, notice)
        if farewell_was_said() or was_dismissed():
            break
        notice.heed()
        if not stays:
            remedy = "Its own log says why; start this task again with it"
            raise TaskLost(f"chief at {chief}", "is gone: killed, or lost with its machine", remedy=remedy)
        _log.warning("the chief at %s is gone without a word: waiting for it to come again", chief)


@contextlib.contextmanager
def _posting(cluster: ClusterConfig) -> Iterator[None]:
    """Let tensors come and go by the post, if this task has a part in that."""
    try:
        post = open_post(cluster)
    except Unmet as error:
        _log.warning("%s has no post, and its tensors go by TensorFlow's gRPC: %s", cluster.task, error)
        post = None
    try:
        yield
    finally:
        if post is not None:
            post.close()  # what waits in it would outlast this process's end


def _wait_until_gone(chief: str, timeout: float, notice: Notice) -> None:
    last_seen, refusals, told_at = time.monotonic(), 0, float("inf")
    while refusals < 2 and not was_dismissed():  # twice: a listener with a full queue refuses too
        answer = answers(chief)
        now = time.monotonic()
        refusals = refusals + 1 if answer is False else 0
        if answer:
            last_seen = now
        if notice.has_come and told_at > now:
            told_at = now
            announce_departure()
        if now - told_at > _SECONDS_FOR_THE_CHIEF_TO_SAVE:
            return
        if now - last_seen > timeout:
            remedy = "It is stopped, or its machine is out of reach"
            raise TaskLost(f"chief at {chief}", f"has been silent for {timeout:g} s", remedy=remedy)
        time.sleep(_SECONDS_WHEN_TOLD_TO_END if notice.has_come else _SECONDS_BETWEEN_PROBES)


def _check_task(cluster: ClusterConfig) -> None:
    task = cluster.task
    if task is None:
        remedy = "Give the cluster a task: cluster.with_task('ps', 0)"
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
        raise port_taken(str(cluster.task), cluster.address((task_type, index))) from error
