"""Give TensorFlow's strategies what Keras 3 needs of them, and add the one that TensorFlow 2 has lost.

Variables made in their scopes may be written by replicas. SynchronousParameterServer lets all workers compute
each step on variables that the parameter servers hold.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.cluster import ClusterConfig
from tfdist.exchange import Ring, join_ring
from tfdist.strategy.posting import Posting
from tfdist.strategy.reducing import LimitedAllReduce, RingAllReduce, TimeLimit
from tfdist.strategy.shards import Cutter

__all__ = ["Mirrored", "MultiWorkerMirrored", "ParameterServer", "SynchronousParameterServer"]


def _aggregating(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
    """Make a variable that replicas may write to: what they write is averaged.

    Keras 3 makes its variables without an aggregation. TensorFlow then refuses what a replica writes, or each
    worker keeps its own, as it happens to the moving averages of BatchNormalization.
    """
    none = tf.VariableAggregation.NONE
    if kwargs.get("aggregation", none) in (None, none):
        dtype = kwargs.get("dtype")
        is_whole = dtype is not None and not tf.as_dtype(dtype).is_floating
        aggregations = tf.VariableAggregation
        kwargs["aggregation"] = aggregations.ONLY_FIRST_REPLICA if is_whole else aggregations.MEAN
    return next_creator(**kwargs)


class _Entered:
    """Enter a strategy's scope, and make variables in it by some creators."""

    def __init__(self, scope: Any, *creators: Callable[..., Any]) -> None:
        self._scopes = [scope, *(tf.variable_creator_scope(each) for each in creators)]
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Any:
        strategy, *_ = [self._stack.enter_context(each) for each in self._scopes]
        return strategy

    def __exit__(self, *error: Any) -> Any:
        return self._stack.__exit__(*error)


class Mirrored(tf.distribute.MirroredStrategy):  # type: ignore[misc]
    """Train in one process on several devices, with variables that replicas may write to."""

    def scope(self) -> Any:
        """Enter the strategy, with such variables."""
        return _Entered(super().scope(), _aggregating)


class MultiWorkerMirrored(tf.distribute.MultiWorkerMirroredStrategy):  # type: ignore[misc]
    """Train in several processes, with variables that replicas may write to and agree on.

    Attributes:
        ring: What gradients go over; None where that is left to TensorFlow.
    """

    ring: Ring | None = None

    def __init__(
        self,
        resolver: tf.distribute.cluster_resolver.ClusterResolver,
        options: tf.distribute.experimental.CommunicationOptions,
        timeout: float | None,
    ) -> None:
        """Train with the others of the cluster.

        Args:
            resolver: Of the cluster and this task.
            options: What TensorFlow's collectives are to do.
            timeout: Seconds that an exchange may take; any number where None.
        """
        super().__init__(resolver, options)
        self._timeout = timeout
        self._limit = None if timeout is None else TimeLimit(timeout)
        if self._limit:
            self._exchange_by(lambda replaced: LimitedAllReduce(replaced, self._limit))

    def exchange_over_ring(
        self, cluster: ClusterConfig, secret: bytes, *, wire_type: str, may_share: bool
    ) -> None:
        """Add up over a ring of TCP connections from here on; all workers have to call it.

        Raises:
            Unmet: A worker has not met its neighbours. All go on as before.
        """

        def add_up(numbers: Sequence[float]) -> Sequence[float]:
            found: Sequence[float] = self.reduce("SUM", tf.constant(numbers, tf.float32), axis=None).numpy()
            return found

        ring = join_ring(cluster, secret, add_up, timeout=self._timeout, may_share=may_share)
        self._exchange_by(lambda replaced: RingAllReduce(replaced, ring, wire_type, self._limit))
        self.ring = ring

    def add_gradients_up(self, gradients: Sequence[Any], share: Any) -> list[Any]:
        """Add dense gradients up over the ring, each replica's times its share; in cross-replica context."""
        found: list[Any] = self.extended._cross_device_ops.scaled_sums(gradients, share)
        return found

    def scope(self) -> Any:
        """Enter the strategy, with such variables."""
        return _Entered(super().scope(), _aggregating)

    def _exchange_by(self, put_in_place: Callable[[Any], Any]) -> None:
        for name in ("_cross_device_ops", "_host_cross_device_ops"):
            setattr(self.extended, name, put_in_place(getattr(self.extended, name)))


class ParameterServer(tf.distribute.ParameterServerStrategy):  # type: ignore[misc]
    """Let every worker compute at its own pace, on variables that the parameter servers hold.

    Attributes:
        post: What variables and gradients go by; None where that is left to TensorFlow.
    """

    post: Posting | None = None

    def __init__(self, cluster: ClusterConfig, cutter: Cutter | None) -> None:
        super().__init__(cluster.resolver())
        self._cutters = [cutter] if cutter else []

    def scope(self) -> Any:
        """Enter the strategy, with variables in shards where they are large."""
        return _Entered(super().scope(), *self._cutters)


# TensorFlow would fetch ahead to the workers with functions that it registers on each of them, which the
# remote workers of TensorFlow 2.12 refuse as duplicates.
_FROM_CHIEF = tf.distribute.InputOptions(experimental_fetch_to_device=False)


class SynchronousParameterServer(tf.distribute.experimental.CentralStorageStrategy):  # type: ignore[misc]
    """Let every worker compute each step, and the parameter servers keep the variables and update them.

    CentralStorageStrategy knows one device for variables. Told only "a CPU", it leaves the task to the scope
    around it, which takes the parameter server that holds the fewest bytes.

    Attributes:
        post: What variables and gradients go by; None where that is left to TensorFlow.
    """

    post: Posting | None = None

    def __init__(self, cluster: ClusterConfig, cutter: Cutter | None, device: str = "auto") -> None:
        tf.config.experimental_connect_to_cluster(
            cluster.cluster_spec(), job_name="chief", task_index=0, protocol="grpc"
        )
        gpus, cpus = (_of_workers(kind) for kind in ("GPU", "CPU"))
        devices = gpus if gpus and device != "cpu" else cpus
        super().__init__(compute_devices=devices, parameter_device="/device:CPU:0")
        # As TensorFlow's strategies for clusters have it: `strategy.cluster_resolver` reads it.
        self.extended._cluster_resolver = cluster.resolver()
        self._load = {f"/job:ps/replica:0/task:{index}": 0 for index in range(cluster.size("ps"))}
        self._is_placing = False
        self._cutters = [cutter] if cutter else []

    def scope(self) -> Any:
        """Enter the strategy; variables made in it are spread over the parameter servers."""
        return _Entered(super().scope(), _aggregating, self._place, *self._cutters)

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
        if self._is_placing:  # a scope within the scope
            return next_creator(**kwargs)
        self._is_placing = True
        try:
            with tf.device(min(self._load, key=lambda device: self._load[device])):
                made = next_creator(**kwargs)
        finally:
            self._is_placing = False
        for device in self._load:
            if device in made.device:  # a slot variable goes where its variable is, wherever that is
                self._load[device] += made.dtype.size * max(made.shape.num_elements() or 0, 1)
        return made


def _of_workers(kind: str) -> list[str]:
    return [each.name for each in tf.config.list_logical_devices(kind) if "/job:worker/" in each.name]
