"""Extend TensorFlow's strategies for Keras 3, and add synchronous training on parameter servers.

Replicas may write to variables that are made in the scopes of the synchronous strategies. TensorFlow 2 itself
has no synchronous strategy for parameter servers.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist._utils.temporary_patches import attributes_set
from tfdist._utils.tf_private import (
    convert_initial_values,
    cross_device_ops_of,
    replace_cross_device_ops,
    replicas_on,
    set_cluster_resolver,
    worker_count,
    workers_wait,
)
from tfdist.cluster.config import ClusterConfig, Task
from tfdist.coordination.grpc_health_probe import SILENCE_LIMIT
from tfdist.errors import ConfigError
from tfdist.strategies.add_up_assignments import add_up_assignments
from tfdist.strategies.bitcast_for_collectives import from_collective_type, to_collective_type
from tfdist.strategies.cross_device_ops import LimitedAllReduce, RingAllReduce, TimeLimit
from tfdist.strategies.devices_and_threads import devices_to_compute_on
from tfdist.strategies.lasting_patches import replace_methods
from tfdist.strategies.options import is_gpu_used
from tfdist.strategies.ps_transfer import PsTransfer
from tfdist.strategies.variable_partitioner import Partitioner
from tfdist.transport.join_ring import join_ring
from tfdist.transport.ring import Ring

_LEAST_TO_CONNECT = 60.0  # seconds: all tasks are there, but one may find its GPUs first


def ring_of(strategy: tf.distribute.Strategy) -> Ring | None:
    """Return the ring over which a strategy adds gradients up; None if TensorFlow adds them."""
    return strategy.ring if isinstance(strategy, MultiWorkerMirrored) else None


def begin_step(strategy: tf.distribute.Strategy, model: Any) -> None:
    """Begin a training step of a model, to trace it or to run it, over the strategy's ring, if any."""
    if ring_of(strategy) is not None:
        cross_device_ops_of(strategy).buckets.begin_step(model)


def ps_transfer_of(strategy: tf.distribute.Strategy) -> PsTransfer | None:
    """Return the transfer between workers and parameter servers; None if TensorFlow sends the tensors."""
    is_of_ps = isinstance(strategy, (ParameterServer, SynchronousParameterServer))
    return strategy.ps_transfer if is_of_ps else None


def _aggregating(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
    """Make a variable that replicas may write to: it takes the mean, or an integer of the first replica.

    Keras 3 makes its variables without an aggregation. TensorFlow then rejects a replica's write, or each
    worker keeps its own value, such as the moving averages of BatchNormalization.
    """
    none = tf.VariableAggregation.NONE
    if kwargs.get("aggregation", none) in (None, none):
        dtype = _dtype_of_variable(**kwargs)
        is_whole = dtype is not None and not tf.as_dtype(dtype).is_floating
        aggregations = tf.VariableAggregation
        kwargs["aggregation"] = aggregations.ONLY_FIRST_REPLICA if is_whole else aggregations.MEAN
    return next_creator(**kwargs)


def _dtype_of_variable(initial_value: Any = None, dtype: Any = None, **_: Any) -> Any:
    """Return the type of a variable, None if a function makes it."""
    if dtype is not None or initial_value is None or callable(initial_value):
        return dtype
    return getattr(initial_value, "dtype", None) or tf.convert_to_tensor(initial_value).dtype


class _Entered:
    """The scope of a strategy, in which some creators make the variables."""

    def __init__(self, scope: Any, *creators: Callable[..., Any]) -> None:
        self._scopes = [scope, *(tf.variable_creator_scope(creator) for creator in creators)]
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Any:
        strategy, *_ = [self._stack.enter_context(scope) for scope in self._scopes]
        return strategy

    def __exit__(self, *error: Any) -> Any:
        return self._stack.__exit__(*error)


class Mirrored(tf.distribute.MirroredStrategy):  # type: ignore[misc]
    """A MirroredStrategy whose variables replicas may write to."""

    def scope(self) -> Any:
        """Return the scope, in which replicas may write to the variables."""
        replace_methods(_TRAINED_BY_TFDIST)
        return _Entered(super().scope(), _aggregating)


class MultiWorkerMirrored(tf.distribute.MultiWorkerMirroredStrategy):  # type: ignore[misc]
    """A MultiWorkerMirroredStrategy whose variables replicas may write to, with or without a ring.

    Attributes:
        ring: The ring that adds gradients up; None if TensorFlow adds them.
        while_making: Returns, for the name of a variable, a context in which it is made.
        check_split: Refuses a data set of which the workers would take parts that overlap.
    """

    ring: Ring | None = None
    while_making: Callable[[str], contextlib.AbstractContextManager[None]] | None = None
    check_split: Callable[[tf.data.Dataset], None] | None = None

    def __init__(
        self,
        resolver: tf.distribute.cluster_resolver.ClusterResolver,
        options: tf.distribute.experimental.CommunicationOptions,
        timeout: float | None,
        start_timeout: float,
        heartbeat_timeout: float | None = None,
    ) -> None:
        """Connect to the other workers; an exchange may take `timeout` seconds, if it is not None.

        Each worker computes on all of its devices, which must be as many on all of them.

        Args:
            resolver: The cluster and this process's task.
            options: The options of TensorFlow's collectives.
            timeout: Seconds that an exchange may take; None for no limit.
            start_timeout: Seconds to wait for worker 0, should it end in this call.
            heartbeat_timeout: Seconds without an answer after which a worker is lost; 10 if None.
        """
        # TensorFlow's own limit ends a standstill of half of it.
        least = None if heartbeat_timeout is None else max(2 * heartbeat_timeout, SILENCE_LIMIT)
        waiting = workers_wait(
            seconds_to_connect=max(start_timeout, _LEAST_TO_CONNECT), seconds_of_silence=least
        )
        with replicas_on(*devices_to_compute_on()), waiting:
            super().__init__(resolver, options)
        self._silence_limit = SILENCE_LIMIT if heartbeat_timeout is None else heartbeat_timeout
        convert_initial_values(self, to_collective_type, from_collective_type)
        self._timeout = timeout
        self._limit = None if timeout is None else TimeLimit(timeout)
        replace_cross_device_ops(self, lambda replaced: LimitedAllReduce(replaced, self._limit))

    def use_ring(
        self, cluster: ClusterConfig, secret: bytes, *, wire_type: str, may_share: bool, is_encrypted: bool
    ) -> None:
        """Add gradients up over a ring of TCP connections from now on; all workers must call it.

        Raises:
            ConnectError: A worker cannot connect to its neighbours. All workers continue without a ring.
        """
        ring = join_ring(
            cluster,
            secret,
            self.summed_over_workers,
            timeout=self._timeout,
            silence_limit=self._silence_limit,
            may_share=may_share,
            is_encrypted=is_encrypted,
        )
        replace_cross_device_ops(self, lambda replaced: RingAllReduce(replaced, ring, wire_type, self._limit))
        self.ring = ring

    def summed_over_workers(self, numbers: Sequence[float]) -> Sequence[float]:
        """Return the sums of the workers' numbers; all workers must call it."""
        if worker_count(self) == 1:
            return numbers
        sums: Sequence[float] = self.reduce("SUM", tf.constant(numbers, tf.float32), axis=None).numpy()
        return sums

    def scope(self) -> Any:
        """Return the scope, in which replicas may write to the variables."""
        replace_methods(_TRAINED_BY_TFDIST)
        return _Entered(super().scope(), _aggregating, self._make)

    def experimental_distribute_dataset(
        self, dataset: tf.data.Dataset, options: tf.distribute.InputOptions | None = None
    ) -> Any:
        """Distribute a data set of global batches over the workers."""
        if self.check_split is not None:
            self.check_split(dataset)
        return super().experimental_distribute_dataset(dataset, options)

    def _make(self, next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        if self.while_making is None:
            return next_creator(**kwargs)
        with self.while_making(kwargs.get("name") or "without a name"):
            return next_creator(**kwargs)


class ParameterServer(tf.distribute.ParameterServerStrategy):  # type: ignore[misc]
    """A ParameterServerStrategy: each worker computes at its own pace, on variables of the servers.

    Attributes:
        ps_transfer: The transfer of variables and gradients; None if TensorFlow sends them.
    """

    ps_transfer: PsTransfer | None = None

    def __init__(self, cluster: ClusterConfig, partitioner: Partitioner | None) -> None:
        super().__init__(cluster.resolver())
        self._partitioners = [partitioner] if partitioner else []

    def scope(self) -> Any:
        """Return the scope, in which large variables are made in shards."""
        replace_methods(_TRAINED_BY_TFDIST)
        return _Entered(super().scope(), *self._partitioners)


# To prefetch to the workers, TensorFlow would register functions on each of them, which the remote workers of
# TensorFlow 2.12 reject as duplicates.
_FROM_CHIEF = tf.distribute.InputOptions(experimental_fetch_to_device=False)


class SynchronousParameterServer(tf.distribute.experimental.CentralStorageStrategy):  # type: ignore[misc]
    """Synchronous training: all workers compute each step, on variables that parameter servers update.

    CentralStorageStrategy puts all variables on one device. If that device is only "a CPU", the scope chooses
    the task, and takes the parameter server that holds the fewest bytes.

    Attributes:
        ps_transfer: The transfer of variables and gradients; None if TensorFlow sends them.
    """

    ps_transfer: PsTransfer | None = None

    def __init__(self, cluster: ClusterConfig, partitioner: Partitioner | None, device: str) -> None:
        tf.config.experimental_connect_to_cluster(
            cluster.cluster_spec(), job_name="chief", task_index=0, protocol="grpc"
        )
        gpus, cpus = (_of_workers(kind) for kind in ("GPU", "CPU"))
        devices = gpus if is_gpu_used(device, len(gpus)) else cpus
        super().__init__(compute_devices=devices, parameter_device="/device:CPU:0")
        set_cluster_resolver(self, cluster.resolver())
        self._load = {Task("ps", index).device: 0 for index in range(cluster.size("ps"))}
        self._is_placing = False
        self._partitioners = [partitioner] if partitioner else []

    def scope(self) -> Any:
        """Return the scope, which spreads variables over the parameter servers."""
        replace_methods(_TRAINED_BY_TFDIST)
        return _Entered(super().scope(), _aggregating, self._place, *self._partitioners)

    def experimental_distribute_dataset(
        self, dataset: tf.data.Dataset, options: tf.distribute.InputOptions | None = None
    ) -> Any:
        """Distribute a data set of global batches over the workers."""
        return tf.distribute.Strategy.experimental_distribute_dataset(self, dataset, options or _FROM_CHIEF)

    def distribute_datasets_from_function(
        self, dataset_fn: Callable[..., tf.data.Dataset], options: tf.distribute.InputOptions | None = None
    ) -> Any:
        """Distribute a data set of replica batches over the workers."""
        return tf.distribute.Strategy.distribute_datasets_from_function(
            self, dataset_fn, options or _FROM_CHIEF
        )

    def _place(self, next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        if self._is_placing:  # a nested scope
            return next_creator(**kwargs)
        device = min(self._load, key=lambda device: self._load[device])
        try:
            with attributes_set(self, _is_placing=True), tf.device(device):
                made = next_creator(**kwargs)
        except tf.errors.OperatorNotAllowedInGraphError as error:
            raise _made_in_a_step(kwargs.get("name") or "a variable") from error
        if kwargs.get("aggregation") == tf.VariableAggregation.SUM:
            add_up_assignments(made)
        for device in self._load:
            if device in made.device:  # a slot variable is where its variable is, perhaps elsewhere
                self._load[device] += made.dtype.size * max(made.shape.num_elements() or 0, 1)
        return made


def _made_in_a_step(name: str) -> ConfigError:
    """Return the error for a variable that TensorFlow cannot make, since a graph would have to decide it."""
    remedy = "Build the model before the first step: begin it with keras.Input, or call model.build(shape)"
    return ConfigError(name, "is made inside a step, as an unbuilt layer does", remedy=remedy)


_TRAINED_BY_TFDIST = (Mirrored, MultiWorkerMirrored, ParameterServer, SynchronousParameterServer)


def _of_workers(kind: str) -> list[str]:
    return [device.name for device in tf.config.list_logical_devices(kind) if "/job:worker/" in device.name]
