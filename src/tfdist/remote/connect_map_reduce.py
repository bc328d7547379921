"""Connect the chief to the tasks that serve it, so that it can compute on them."""

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdist._utils.tf_private import connected_tasks, update_connections
from tfdist.cluster.config import ClusterConfig, Task
from tfdist.coordination.end_announcements import dismiss
from tfdist.coordination.wait_for_tasks import START_TIMEOUT
from tfdist.errors import ConfigError, TaskLost, shown
from tfdist.remote.reduction import Operation, Parts, reduced, size_of
from tfdist.remote.task_pool import Pool
from tfdist.strategies.devices_and_threads import check_device_name, configure_devices, threads_to_wait
from tfdist.strategies.options import Device
from tfdist.strategies.wait_then_connect import connecting, is_connected

_log = logging.getLogger("tfdist")


@contextlib.contextmanager
def connect(
    cluster: ClusterConfig, *, start_timeout: float = START_TIMEOUT, heartbeat_timeout: float = 60.0
) -> Iterator["Remote"]:
    """Connect the chief to all other tasks of a cluster, and end them at the end of the block.

    The other tasks, of any job names, call `tfdist.serve` and end with the block. TensorFlow connects a
    process once: call this instead of `make_strategy`, before other code uses TensorFlow's devices.

    Args:
        cluster: The cluster; its task is the chief.
        start_timeout: Seconds that the other tasks may take to start.
        heartbeat_timeout: Seconds without an answer after which a computing task counts as lost.

    Raises:
        ConfigError: This is not the chief, it is connected already, the cluster has no other task, or the
            chief's port is taken.
        TaskLost: A task has not started in time.
    """
    tasks = _servers(cluster)
    configure_devices("auto", inter_op_threads=threads_to_wait())
    with connecting("connect", cluster, None, timeout=start_timeout):
        tf.config.experimental_connect_to_cluster(
            cluster.cluster_spec(), job_name="chief", task_index=0, protocol="grpc"
        )
    _log.info("connected to %d tasks", len(tasks))
    everybody = connected_tasks()
    pool = Pool(
        {task: cluster.address(task) for task in tasks},
        heartbeat_timeout,
        lambda there: _connect_again(everybody, there),
    )
    try:
        yield Remote(pool)
    finally:
        dismiss(pool.tasks)
        pool.close()


class Remote:
    """The tasks that this process is connected to, for computing on them; `connect` yields it."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._home = Task("chief", 0).cpu

    @property
    def tasks(self) -> tuple[Task, ...]:
        """Return the tasks that can compute: all but this process's own and the lost ones."""
        return self._pool.tasks

    def device(self, job: str, index: int = 0, kind: Device = "auto", number: int = 0) -> Any:
        """Return a context that places operations, variables and tensors on a task.

        Args:
            job: The name of the job.
            index: The task's index in the job.
            kind: cpu, gpu, or auto, which uses a GPU for each operation that has a GPU kernel.
            number: The number of the CPU or GPU in that task.
        """
        task = Task(job, index)
        self._pool.check(task)
        path = task.device
        if kind != "auto":
            check_device_name(kind)
            path += f"/device:{kind.upper()}:{number}"
            if path not in {device.name for device in tf.config.list_logical_devices(kind.upper())}:
                problem = f"has no {kind.upper()}:{number} for TensorFlow"
                raise ConfigError(str(task), problem, remedy="Leave the kind out, or check nvidia-smi there")
        return tf.device(path)

    def map(self, fn: Callable[[Any], Any], slices: Iterable[Any], *, job: str | None = None) -> Parts:
        """Call a function with each slice, on any free task; return the values in the slices' order.

        The chief sends a task one slice at a time, and fetches the function's value from there. If a task is
        lost, another one computes its slice again, and the lost task gets no slice until it is back. So tasks
        may compute a slice twice, and the function must have no side effects.

        Args:
            fn: The function. A `tf.function` is one call to the task, otherwise each operation is a call.
            slices: Tensors, arrays, or nested structures of them; they may differ in size.
            job: Only the tasks of this job compute; by default, all tasks do.

        Raises:
            TaskLost: All tasks are lost, or one whose variables the function uses.
        """
        with tf.device(self._home):
            sent = [tf.nest.map_structure(tf.convert_to_tensor, part) for part in slices]
        tasks = self._pool.of(job)
        if not tasks:
            known = ", ".join(map(str, self.tasks)) or "none"
            where = "map" if job is None else f"map: job {shown(job)}"
            raise TaskLost(where, f"no such task is connected; these tasks are: {known}")
        values = self._pool.share(len(sent), lambda task, i: self._call(task, fn, sent[i]), tasks)
        return Parts(values, [size_of(part) for part in sent])

    def reduce(self, op: Operation, values: Iterable[Any], *, sizes: Sequence[float] | None = None) -> Any:
        """Return one value for many; it reduces nested structures leaf by leaf.

        Args:
            op: mean, sum, min, max, or concat, which joins values along their first dimension.
            values: The result of `map`, or other values of one structure.
            sizes: The weight of each value in the mean; by default, the length of its slice's first
                dimension.
        """
        with tf.device(self._home):
            return reduced(op, values, sizes)

    def _call(self, task: Task, fn: Callable[[Any], Any], part: Any) -> Any:
        with tf.device(task.device):
            value = fn(part)
        with tf.device(self._home):
            return tf.nest.map_structure(
                lambda leaf: tf.identity(leaf) if tf.is_tensor(leaf) else leaf, value
            )


def _servers(cluster: ClusterConfig) -> list[Task]:
    """Return the tasks to connect to, if this process is the chief and is not connected yet."""
    if cluster.task != Task("chief", 0):
        remedy = (
            "Call tfdist.serve(cluster) on this task"
            if cluster.task
            else "Set its task: cluster.with_task('chief')"
        )
        raise ConfigError(
            "connect", f"is for the chief, but this is {cluster.task or 'no task'}", remedy=remedy
        )
    tasks = [task for task in cluster.training().tasks() if task != cluster.task]
    if not tasks:
        remedy = "Add a job, such as jobs={'reader': ['10.0.0.2:2222']}"
        raise ConfigError(cluster.source.at(), "has only a chief, and no task to connect to", remedy=remedy)
    if is_connected():
        problem = "this process is connected already, and TensorFlow connects a process once"
        raise ConfigError("connect", problem, remedy="Use one block for all, or another process")
    return tasks


def _connect_again(everybody: Any, tasks: Sequence[Task]) -> None:
    """Connect to restarted tasks, and keep the connections and the variables of the others in `tasks`.

    TensorFlow's coordinator does the same for its workers. TensorFlow sends traced functions to new tasks.
    """
    there = type(everybody)()
    there.CopyFrom(everybody)
    del there.cluster.job[:]
    for job in everybody.cluster.job:
        is_ours = job.name == "chief"
        kept = {i: address for i, address in job.tasks.items() if is_ours or (job.name, i) in tasks}
        if kept:
            there.cluster.job.add(name=job.name, tasks=kept)
    update_connections(there)
