"""Connect the chief to the tasks that serve it, and let it compute on them."""

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context

from tfdist.cluster import ClusterConfig, Task
from tfdist.devices import Device, check_device_name, configure_devices, threads_to_wait
from tfdist.errors import ConfigError, TaskLost, shown
from tfdist.farewell import dismiss
from tfdist.remote.pool import Pool
from tfdist.remote.reducing import Operation, Parts, reduced, size_of
from tfdist.strategy import connecting, is_connected

__all__ = ["Remote", "connect"]

_log = logging.getLogger("tfdist")


@contextlib.contextmanager
def connect(
    cluster: ClusterConfig, *, start_timeout: float = 600.0, silence_timeout: float = 60.0
) -> Iterator["Remote"]:
    """Connect the chief to all other tasks of a cluster, and let them go at the end of the block.

    The others call `tfdist.serve`, under whatever job names, and end with the block. TensorFlow connects a
    process once: call this in place of `make_strategy`, before anything else touches its devices.

    Args:
        cluster: The cluster; its task is the chief.
        start_timeout: Seconds that the other tasks may take to come up.
        silence_timeout: Seconds without an answer after which a task that computes counts as lost.

    Raises:
        ConfigError: This is not the chief, or is connected already, has nobody to connect to, or its port is
            taken.
        TaskLost: A task has not come up in time.
    """
    tasks = _servers(cluster)
    configure_devices("auto", inter_op_threads=threads_to_wait())
    with connecting("connect", cluster, None, timeout=start_timeout):
        tf.config.experimental_connect_to_cluster(
            cluster.cluster_spec(), job_name="chief", task_index=0, protocol="grpc"
        )
    _log.info("connected to %d tasks", len(tasks))
    everybody = context.get_server_def()
    pool = Pool(
        {task: cluster.address(task) for task in tasks},
        silence_timeout,
        lambda there: _connect_again(everybody, there),
    )
    try:
        yield Remote(pool)
    finally:
        dismiss([_path(task) for task in pool.tasks])
        pool.close()


class Remote:
    """Compute on the tasks that this process is connected to; `connect` makes one."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._home = f"{_path(Task('chief', 0))}/device:CPU:0"

    @property
    def tasks(self) -> tuple[Task, ...]:
        """List the tasks that are there: all but this process's own and those that are lost."""
        return self._pool.tasks

    def device(self, job: str, index: int = 0, kind: Device = "auto", number: int = 0) -> Any:
        """Choose where the operations of a block run, and where its variables and tensors are.

        Args:
            job: The name of the job.
            index: Which of its tasks.
            kind: cpu, gpu, or for each operation a GPU where there is one that can do it.
            number: Which CPU or GPU of that task.
        """
        task = Task(job, index)
        self._pool.check(task)
        path = _path(task)
        if kind != "auto":
            check_device_name(kind)
            path += f"/device:{kind.upper()}:{number}"
            if path not in {each.name for each in tf.config.list_logical_devices(kind.upper())}:
                problem = f"has no {kind.upper()}:{number} for TensorFlow"
                raise ConfigError(str(task), problem, remedy="Leave the kind out, or see nvidia-smi there")
        return tf.device(path)

    def map(self, fn: Callable[[Any], Any], slices: Iterable[Any], *, job: str | None = None) -> Parts:
        """Call a function with each slice, on whichever task is free; give the values in the slices' order.

        A task is sent one slice at a time, and what the function gives is fetched from there. Where a task is
        lost, another one computes its slice anew, and the task is given no more until it is back. So a slice
        may be computed twice: let the function change nothing.

        Args:
            fn: The function; as a `tf.function` it is one call to the task, else each of its operations is.
            slices: Tensors, arrays, or nested structures of them; they may differ in size.
            job: The tasks of this job only.

        Raises:
            TaskLost: No task is left, or one whose variables the function uses is lost.
        """
        with tf.device(self._home):
            sent = [tf.nest.map_structure(tf.convert_to_tensor, each) for each in slices]
        tasks = self._pool.of(job)
        if not tasks:
            known = ", ".join(map(str, self.tasks)) or "none"
            where = "map" if job is None else f"map: job {shown(job)}"
            raise TaskLost(where, f"no such task is there; those that are: {known}")
        values = self._pool.share(len(sent), lambda task, i: self._call(task, fn, sent[i]), tasks)
        return Parts(values, [size_of(each) for each in sent])

    def reduce(self, op: Operation, values: Iterable[Any], *, sizes: Sequence[float] | None = None) -> Any:
        """Make one value of many, leaf by leaf where they are nested structures.

        Args:
            op: mean, sum, min, max, or concat, which joins them along their first dimension.
            values: What `map` gave, or other values of one structure.
            sizes: How much each value counts for in the mean. Without, as much as its slice was long, in the
                first dimension.
        """
        with tf.device(self._home):
            return reduced(op, values, sizes)

    def _call(self, task: Task, fn: Callable[[Any], Any], part: Any) -> Any:
        with tf.device(_path(task)):
            value = fn(part)
        with tf.device(self._home):
            return tf.nest.map_structure(
                lambda leaf: tf.identity(leaf) if tf.is_tensor(leaf) else leaf, value
            )


def _servers(cluster: ClusterConfig) -> list[Task]:
    """Give the tasks to connect to, if this is who may."""
    if cluster.task != Task("chief", 0):
        remedy = (
            "Call tfdist.serve(cluster) on this task" if cluster.task else "Say cluster.with_task('chief')"
        )
        raise ConfigError(
            "connect", f"is for the chief, but this is {cluster.task or 'no task'}", remedy=remedy
        )
    tasks = [task for task in cluster.training().tasks() if task != cluster.task]
    if not tasks:
        remedy = "Add a job, such as jobs={'reader': ['10.0.0.2:2222']}"
        raise ConfigError(cluster.source.at(), "has only a chief, and nobody to connect to", remedy=remedy)
    if is_connected():
        problem = "this process is connected already, and TensorFlow connects a process once"
        raise ConfigError("connect", problem, remedy="Do all in one block, or in another process")
    return tasks


def _connect_again(everybody: Any, tasks: Sequence[Task]) -> None:
    """Connect to tasks that were started anew, and keep the others that are named: their variables stay.

    It is what TensorFlow's coordinator does for its workers. Traced functions are sent to the new ones.
    """
    there = type(everybody)()
    there.CopyFrom(everybody)
    del there.cluster.job[:]
    for job in everybody.cluster.job:
        is_ours = job.name == "chief"
        kept = {i: address for i, address in job.tasks.items() if is_ours or (job.name, i) in tasks}
        if kept:
            there.cluster.job.add(name=job.name, tasks=kept)
    context.context().update_server_def(there)


def _path(task: Task) -> str:
    return f"/job:{task.type}/replica:0/task:{task.index}"
