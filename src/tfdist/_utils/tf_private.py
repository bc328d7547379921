"""Use TensorFlow's private API, which no other file of tfdist does.

All of these names were seen in TensorFlow 2.12 and 2.21. A function's parameters are called by the kind of
object that they are, such as `strategy` or `dataset`: tests/unit/test_private_names.py reads kinds and names
from here, and asserts that the installed TensorFlow has them.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.autograph.impl import api as autograph
from tensorflow.python.data.ops import multi_device_iterator_ops
from tensorflow.python.distribute import (
    collective_all_reduce_strategy,
    cross_device_ops,
    distribute_utils,
    input_lib,
    ps_values,
    sharded_variable,
    values,
)
from tensorflow.python.distribute.coordinator import coordinator_context
from tensorflow.python.distribute.coordinator import values as coordinator_values
from tensorflow.python.eager import context, executor
from tensorflow.python.framework import composite_tensor_gradient, config, ops
from tensorflow.python.ops import control_flow_v2_func_graphs, script_ops
from tensorflow.python.saved_model import load
from tensorflow.python.util import tf_decorator

from tfdist._utils.strategy_kinds import is_asynchronous
from tfdist._utils.temporary_patches import attributes_set
from tfdist.errors import own_error

# A variable in shards, which Keras knows too.
ShardedVariable: Any = tf.__internal__.distribute.ShardedVariable
# What binds the function of a method, what AutoGraph has left when it was traced, and what names operations.
_DECORATORS_OF_FUNCTIONS = (
    "class_method_to_instance_method",
    "py_func_from_autograph",
    "func_graph_from_py_func",
    "with_name_scope",
)
# The class of what tf.function returns.
PolymorphicFunction: Any = type(tf.function(lambda: None))


class _GradientOfShards(composite_tensor_gradient.CompositeTensorGradient):  # type: ignore[misc]
    """Differentiate by the shards, and put the gradient of the whole variable together."""

    def get_gradient_components(self, value: Any) -> list[Any]:
        return [shard.handle for shard in value.variables]

    def replace_gradient_components(self, value: Any, component_grads: list[Any]) -> Any:
        return value.whole_gradient(component_grads)


class ShardedVariableSavedAsOne(ShardedVariable):  # type: ignore[misc]  # TensorFlow ships no types
    """Save shards in a checkpoint as one variable, so that it can be restored with any number of shards.

    A tape differentiates by the `handle` of a Keras variable. If that is a composite tensor, its
    `__composite_gradient__` takes and makes the gradients.
    """

    __composite_gradient__ = _GradientOfShards()

    @property
    def handle(self) -> Any:
        """Return what a tape differentiates by."""
        return self

    def whole_gradient(self, gradients: list[Any]) -> Any:
        """Return the gradient of the whole variable from those of its shards."""
        raise NotImplementedError

    def _serialize_to_tensors(self) -> dict[str, tf.Tensor]:
        return {"VARIABLE_VALUE": tf.convert_to_tensor(self)}

    def _restore_from_tensors(self, restored_tensors: dict[str, tf.Tensor]) -> Any:
        return self.assign(restored_tensors["VARIABLE_VALUE"])


def colocates_with_first_shard(kind: type[ShardedVariableSavedAsOne]) -> None:
    """Make `tf.colocate_with` a variable in shards mean its first shard: an optimizer updates it there.

    TensorFlow converts what operations are colocated with to a tensor `as_ref`.
    """

    def converted(variable: Any, dtype: Any = None, name: str | None = None, as_ref: bool = False) -> Any:
        if not as_ref:
            return sharded_variable._var_to_tensor(variable, dtype, name)
        handle = variable.variables[0].handle
        graph = tf.compat.v1.get_default_graph()
        return graph.capture(handle) if graph.building_function else handle

    tf.register_tensor_conversion_function(kind, converted, priority=0)


# Variables that replicas share; each replica may assign to them.
SHARED_VARIABLES: tuple[Any, ...] = (values.DistributedVariable, ps_values.AggregatingVariable)
ASSIGNMENTS = ("assign", "assign_add", "assign_sub")


@contextlib.contextmanager
def read_in_this_process(mirrored_variable: Any) -> Iterator[None]:
    """Read a variable, within the block, from the copies of this process, without those of other workers.

    It is one that TensorFlow adds up, or averages, over the replicas of all workers each time it is read.
    """

    def read() -> Any:
        copies = [tf.convert_to_tensor(copy) for copy in mirrored_variable._values]
        is_summed = mirrored_variable.aggregation == tf.VariableAggregation.SUM
        return tf.add_n(copies) if is_summed else copies[0]

    with attributes_set(mirrored_variable, _get_cross_replica=read):
        yield


# -- this process and its connections --


def register_function(token: str, function: Callable[..., Any]) -> None:
    """Register a function under a token for PyFunc operations; TensorFlow does not keep it alive."""
    script_ops._py_funcs._funcs[token] = function


@contextlib.contextmanager
def outside_scopes() -> Iterator[None]:
    """Leave all scopes of strategies and creators of variables within the block."""
    graph = tf.compat.v1.get_default_graph()
    strategies, creators = graph._distribution_strategy_stack, graph._variable_creator_stack
    graph._distribution_strategy_stack, graph._variable_creator_stack = [], []
    try:
        yield
    finally:
        graph._distribution_strategy_stack, graph._variable_creator_stack = strategies, creators


@contextlib.contextmanager
def own_executor() -> Iterator[None]:
    """Run the operations of a block apart from those of other threads, whose failures are not theirs."""
    own = executor.new_executor(enable_async=False)
    with context.executor_scope(own):
        try:
            yield
        finally:
            own.clear_error()  # or its destructor would print the error again


def use_own_executor() -> Any:
    """Run all operations of this thread apart from those of others, and return what runs them."""
    own = executor.new_executor(enable_async=False)
    context.context().executor = own
    return own


def connected_tasks() -> Any:
    """Return what TensorFlow knows of the cluster that this process is connected to; None if to none."""
    return context.get_server_def()


# TensorFlow's default is 600 s by the wall clock: a server whose clock is set forward by more than that
# removes all variables and functions of a process that does not call it in the same second.
_SECONDS_UNTIL_REMOVED = 10**9


@contextlib.contextmanager
def servers_keep_state() -> Iterator[None]:
    """Keep what this process stores on the servers that the block connects to, as long as they run."""
    connection = context.context()
    keep = functools.partial(connection.set_server_def, keep_alive_secs=_SECONDS_UNTIL_REMOVED)
    with (
        attributes_set(context, _KEEP_ALIVE_SECS=_SECONDS_UNTIL_REMOVED),
        attributes_set(connection, set_server_def=keep),
    ):
        yield


def update_connections(server_def: Any) -> None:
    """Connect to other tasks, such as those that were started again, and send them all traced functions."""
    context.context().update_server_def(server_def, keep_alive_secs=_SECONDS_UNTIL_REMOVED)


def abort_collectives(code: int, message: str) -> None:
    """End TensorFlow's collectives in this process for good, those that run and those that come."""
    context.context().abort_collective_ops(code, message)


def put_for_workers(key: str, text: str) -> None:
    """Store a text under a new key, where all mirrored workers of this process's cluster find it."""
    context.context().set_config_key_value(key, text)


def take_of_workers(key: str) -> str:
    """Wait until a mirrored worker has stored a text under a key, remove it and return it."""
    text: str = context.context().get_config_key_value(key)
    with contextlib.suppress(tf.errors.OpError):  # the worker that stores them may have ended since
        context.context().delete_config_key_value(key)
    return text


def are_devices_fixed() -> bool:
    """Return whether TensorFlow has set its devices and threads up, which cannot be changed after that."""
    return context.context()._context_handle is not None


def read_planes(written: bytes) -> Any:
    """Return what the profiler has written, as a message of planes, lines and events.

    Raises:
        ModuleNotFoundError: This version of TensorFlow has the messages elsewhere.
        ValueError: These bytes are something else.
    """
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()
    try:
        space.ParseFromString(written)
    except DecodeError as error:
        raise ValueError(str(error)) from None
    return space


# -- strategies --


def cluster_resolver(strategy: tf.distribute.Strategy) -> Any:
    """Return what knows the cluster of a strategy; ParameterServerStrategy has one, and does not give it."""
    return strategy.cluster_resolver or getattr(strategy, "_cluster_resolver", None)


def set_cluster_resolver(strategy: tf.distribute.Strategy, resolver: Any) -> None:
    """Set what `strategy.cluster_resolver` returns, as TensorFlow's own strategies for clusters do."""
    strategy.extended._cluster_resolver = resolver


@contextlib.contextmanager
def traced_by_chief(strategy: Any) -> Iterator[None]:
    """Allow the chief to trace a graph for asynchronous workers without a warning, within the block."""
    if not is_asynchronous(strategy):
        yield
        return
    servers = strategy.extended
    with attributes_set(servers, _allow_run_without_coordinator=True):
        yield


def worker_count(strategy: tf.distribute.Strategy) -> int:
    """Return how many workers a strategy for several of them has."""
    return int(strategy.extended._num_workers)


def worker_number(strategy: tf.distribute.Strategy) -> int:
    """Return the number of this worker among all, the chief's being 0."""
    return int(strategy.extended._id_in_cluster)


@contextlib.contextmanager
def replicas_on(kind: str, count: int) -> Iterator[None]:
    """Put a replica on each device of the workers of a MultiWorkerMirroredStrategy made in the block.

    TensorFlow asks the cluster resolver for accelerators, takes no GPU where that knows of none, and splits
    no CPU.
    """

    def local_devices(_: Any, __: Any, worker_device: str) -> tuple[tuple[str, ...], str]:
        return tuple(f"{worker_device}/device:{kind}:{index}" for index in range(count)), kind

    extended = collective_all_reduce_strategy.CollectiveAllReduceExtended
    with attributes_set(extended, _initialize_local_devices=local_devices):
        yield


@contextlib.contextmanager
def workers_wait(*, seconds_to_connect: float, seconds_of_silence: float | None) -> Iterator[None]:
    """Set how long workers that connect in the block wait for worker 0, and for heartbeats afterwards.

    Without it TensorFlow waits for an hour, and for 10 s as with None. It sends a heartbeat, which must be
    answered at once, after each half of that time.
    """
    connection = context.context()
    limits = {"cluster_register_timeout_in_ms": int(seconds_to_connect * 1000)}
    if seconds_of_silence is not None:
        limits["heartbeat_timeout_in_ms"] = int(seconds_of_silence * 1000)
    configure = functools.partial(connection.configure_coordination_service, **limits)
    with attributes_set(connection, configure_coordination_service=configure):
        yield


def cross_device_ops_of(strategy: tf.distribute.Strategy) -> Any:
    """Return what adds values up over the replicas of a strategy."""
    return strategy.extended._cross_device_ops


def make_save_counters_outside_scopes() -> None:
    """Make the counter of a tf.train.Checkpoint in this process alone, for the rest of the process.

    The counter is made by the first `save`. In the scope of mirrored workers it would wait for all of them,
    but a script may save on the chief alone.
    """
    of_tensorflow = tf.train.Checkpoint._maybe_create_save_counter
    if hasattr(of_tensorflow, "__wrapped__"):
        return

    @functools.wraps(of_tensorflow)
    def make(checkpoint: Any) -> None:
        with outside_scopes():
            of_tensorflow(checkpoint)

    tf.train.Checkpoint._maybe_create_save_counter = make


def let_branches_look_up() -> None:
    """Make lookup tables usable in loops and branches of any graph, for the rest of the process.

    Under ParameterServerStrategy each worker has a copy of every table, and passes its copy to a graph with
    the call. TensorFlow does not pass it on to a loop or a branch, and the table has no value there.
    """
    of_tensorflow = ps_values.DistributedTable.resource_handle.fget
    if hasattr(of_tensorflow, "__wrapped__"):
        return

    @functools.wraps(of_tensorflow)
    def resource_handle(table: Any) -> Any:
        with outermost_graph().as_default():
            return of_tensorflow(table)

    ps_values.DistributedTable.resource_handle = property(resource_handle)


def outermost_graph() -> Any:
    """Return the graph of the called function, which encloses the graphs of its loops and branches."""
    graph = tf.compat.v1.get_default_graph()
    while hasattr(getattr(graph, "outer_graph", None), "outer_graph"):
        graph = graph.outer_graph
    return graph


def wrap_reset_of_graph(wrap: Callable[[Callable[[], None]], Callable[[], None]]) -> None:
    """Wrap the function that replaces this thread's default graph, for the rest of the thread.

    `reset_default_graph` calls it. That has several names, and `import tensorflow.compat.v1` makes others.
    The stack of graphs has attributes of its own in each thread.
    """
    stack = ops._default_graph_stack
    stack.reset = wrap(stack.reset)


def call_loaded_functions_on_first_replica() -> None:
    """Make functions of a SavedModel compute with the first replica's variables, for the rest of the process.

    Where a scope is entered, the model's variables are those of its strategy. Called outside of a replica,
    TensorFlow's function takes placeholders for them, which end in an assertion.
    """
    of_tensorflow = load._WrapperFunction._call_flat
    if hasattr(of_tensorflow, "__wrapped__"):
        return

    @functools.wraps(of_tensorflow)
    def call(loaded_function: Any, args: Any, captured_inputs: Any, *more: Any, **options: Any) -> Any:
        if tf.distribute.in_cross_replica_context():
            captured_inputs = [_of_first_replica(captured) for captured in captured_inputs]
        return of_tensorflow(loaded_function, args, captured_inputs, *more, **options)

    load._WrapperFunction._call_flat = call


def _of_first_replica(mirrored_variable: Any) -> Any:
    is_mirrored = isinstance(mirrored_variable, values.DistributedVariable)  # and no tensor that is captured
    return mirrored_variable._primary.handle if is_mirrored else mirrored_variable


def replace_cross_device_ops(strategy: tf.distribute.Strategy, replace: Callable[[Any], Any]) -> None:
    """Replace the objects that add values up over the replicas of mirrored workers."""
    extended = strategy.extended
    extended._cross_device_ops = replace(extended._cross_device_ops)
    extended._host_cross_device_ops = replace(extended._host_cross_device_ops)


def convert_initial_values(
    strategy: tf.distribute.Strategy,
    to_sent: Callable[[tf.Tensor], tf.Tensor],
    from_sent: Callable[[tf.Tensor, tf.DType], tf.Tensor],
) -> None:
    """Convert initial values of variables before mirrored workers take those of the chief, and after it."""
    extended = strategy.extended
    make_broadcast = extended._get_variable_creator_initial_value

    def make_converted(replica_id: int, device: str, primary_var: Any, **kwargs: Any) -> Any:
        if replica_id != 0:  # it copies the variable of this worker's first replica
            return make_broadcast(replica_id, device, primary_var, **kwargs)

        def converted() -> tf.Tensor:
            with tf.device(device):
                value = kwargs["initial_value"]
                value = value() if callable(value) else value
                value = tf.convert_to_tensor(getattr(value, "wrapped_value", value), kwargs.get("dtype"))
                sent = {"initial_value": to_sent(value), "dtype": None}
                return from_sent(make_broadcast(replica_id, device, primary_var, **sent)(), value.dtype)

        return converted

    extended._get_variable_creator_initial_value = make_converted


class CollectiveAllReduce(cross_device_ops.CollectiveAllReduce):  # type: ignore[misc]  # TensorFlow ships no types
    """Add up by TensorFlow's collectives; classes derived from it override `all_reduce` and `all_gather`.

    MultiWorkerMirroredStrategy wants a CollectiveAllReduce, and hands it the values of all of this process's
    replicas at once.

    Attributes:
        devices: Of this process's replicas.
        group_size: How many replicas all processes have.
    """

    def __init__(self, replaced: Any) -> None:
        """Copy the settings of the TensorFlow object that this one replaces."""
        super().__init__(
            replaced._devices,
            replaced._group_size,
            replaced._options,
            replaced._collective_keys,
            replaced._canonicalize_devices,
        )
        self.devices, self.group_size = self._devices, self._group_size

    def reduce(
        self, op: tf.distribute.ReduceOp, per_replica: Any, destinations: Any, options: Any = None
    ) -> Any:
        """Add values of the replicas up, or average them, for a variable or a device.

        A Python number or an array takes the type of the variable. (For TensorFlow, the mean of an int32 is a
        float64, which no float32 variable takes.)
        """
        if not (isinstance(per_replica, tf.distribute.DistributedValues) or tf.is_tensor(per_replica)):
            per_replica = tf.convert_to_tensor(per_replica, getattr(destinations, "dtype", None))
        return super().reduce(op, per_replica, destinations, options)

    def all_reduce(self, op: tf.distribute.ReduceOp, per_replica: Sequence[Any], options: Any) -> list[Any]:
        """Add values of the replicas up, or average them."""
        reduced: list[Any] = super()._all_reduce_per_replica_values(op, per_replica, options)
        return reduced

    def all_gather(self, per_replica: Sequence[Any], axis: Any, options: Any) -> list[Any]:
        """Put values of the replicas together along an axis."""
        gathered: list[Any] = super()._batch_all_gather(per_replica, axis, options)
        return gathered

    def _all_reduce_per_replica_values(
        self, reduce_op: Any, per_replica_values: Any, options: Any
    ) -> list[Any]:
        return self.all_reduce(reduce_op, per_replica_values, options)

    def _batch_all_gather(self, per_replica_values: Any, axis: Any, options: Any) -> list[Any]:
        return self.all_gather(per_replica_values, axis, options)


def is_recording() -> bool:
    """Return whether a gradient tape of this thread records."""
    return not pywrap_tfe.TFE_Py_TapeSetIsEmpty()


@contextlib.contextmanager
def variables_without_tensors() -> Iterator[list[Any]]:
    """Collect the variables that functions with gradients of their own read within the block.

    Such a function, as `tf.recompute_grad` makes, returns gradients of its arguments and of variables, but
    not of other tensors that it reads.
    """
    watched_by: Any = pywrap_tfe.TFE_Py_VariableWatcherWatchedVariables
    collected: list[Any] = []

    def noted(watcher: Any) -> Any:
        variables = watched_by(watcher)
        collected.extend(variables)
        return variables

    with attributes_set(pywrap_tfe, TFE_Py_VariableWatcherWatchedVariables=noted):
        yield collected


def is_branch_or_loop(graph: tf.Graph) -> bool:
    """Return whether a graph is that of a branch or a loop in another graph."""
    return isinstance(graph, control_flow_v2_func_graphs.ControlFlowFuncGraph)


def mirrored(copies: Sequence[tf.Tensor]) -> Any:
    """Return one value of which each of this process's replicas has a copy."""
    return distribute_utils.regroup(list(copies), wrap_class=values.Mirrored)


def per_replica(parts: Sequence[tf.Tensor]) -> Any:
    """Return one value of which each of this process's replicas has a part of its own."""
    return distribute_utils.regroup(list(parts), always_wrap=True)


def is_shard(shard: Any) -> bool:
    """Return whether a variable is one of the shards of another."""
    return hasattr(shard, "_sharded_container")


def local_value(mirrored_variable: Any) -> Any:
    """Return, in a replica, its own copy of a variable of which each replica has one."""
    return mirrored_variable._get()


def let_variables_be_numbers() -> None:
    """Make int() and float() take a variable with several copies, as they take any other one.

    Scripts write float(optimizer.learning_rate) and int(optimizer.iterations).
    """
    for kind in (int, float):
        name = f"__{kind.__name__}__"
        if not hasattr(values.DistributedVariable, name):
            setattr(values.DistributedVariable, name, lambda variable, kind=kind: kind(variable.numpy()))


# -- data sets --


def dataset_options(dataset: tf.data.Dataset) -> tf.data.Options:
    """Return the options of a data set; in a graph those given there, of which the public way warns."""
    return dataset.options() if tf.executing_eagerly() else dataset._options_attr


def dataset_inputs(dataset: tf.data.Dataset) -> list[Any]:
    """Return the data sets that a data set is made of."""
    return list(dataset._inputs())


def traced_functions(dataset: tf.data.Dataset) -> list[Any]:
    """Return the functions that a data set calls, as they were traced."""
    return [wrapper.function for wrapper in dataset._functions()]


def shuffle_seeds(shuffled_dataset: tf.data.Dataset) -> list[Any]:
    """Return the two seeds of a data set that shuffles; None for each in any other."""
    return [getattr(shuffled_dataset, "_seed", None), getattr(shuffled_dataset, "_seed2", None)]


def is_reshuffled(shuffled_dataset: tf.data.Dataset) -> bool:
    """Return whether a data set shuffles in another order whenever it begins."""
    return getattr(shuffled_dataset, "_reshuffle_each_iteration", False) is not False


def dataset_tensors(sliced_dataset: tf.data.Dataset) -> list[Any]:
    """Return the arrays that a data set holds in memory."""
    return list(getattr(sliced_dataset, "_tensors", None) or ())


def batch_numbers(batched_dataset: tf.data.Dataset) -> list[Any]:
    """Return the size of a data set's batches, and whether it drops a short last one, or None for each."""
    return [getattr(batched_dataset, "_batch_size", None), getattr(batched_dataset, "_drop_remainder", None)]


def repetitions(repeated_dataset: tf.data.Dataset) -> Any:
    """Return how often a data set repeats another; None for any other."""
    return getattr(repeated_dataset, "_count", None)


def cache_file(cached_dataset: tf.data.Dataset) -> str:
    """Return the file in which a data set caches what it reads; nothing for memory, and for any other."""
    name = tf.get_static_value(getattr(cached_dataset, "_filename", None) or "")
    return name.decode() if isinstance(name, bytes) else ""


def is_deterministic(parallel_dataset: tf.data.Dataset) -> bool:
    """Return whether a data set keeps the order of what it computes in parallel, as far as it says so."""
    return getattr(parallel_dataset, "_deterministic", None) not in ("false", False)


def serialized(dataset: tf.data.Dataset) -> tf.Tensor:
    """Return the graph of a data set, which another process can make the data set of."""
    return dataset._as_serialized_graph(external_state_policy=tf.data.experimental.ExternalStatePolicy.WARN)


@contextlib.contextmanager
def device_datasets_made_by(finish: Callable[[Any], Any]) -> Iterator[None]:
    """Pass each data set by which TensorFlow fetches a device's batches through a function, within the block.

    TensorFlow gives these data sets no options.
    """
    make = multi_device_iterator_ops._create_device_dataset
    with attributes_set(multi_device_iterator_ops, _create_device_dataset=lambda *args: finish(make(*args))):
        yield


def replica_specs(distributed_spec: Any) -> list[Any]:
    """Return the specs of the replicas' parts of a distributed value; of any other spec, that one."""
    return list(getattr(distributed_spec, "_value_specs", None) or [distributed_spec])


# -- the coordinator of parameter servers --


def eager_context() -> Any:
    """Return what knows all functions of this process; a script may replace it, to set its devices again."""
    return context.context()


def must_be_deterministic() -> bool:
    """Return whether `tf.config.experimental.enable_op_determinism` is in effect."""
    return bool(config.is_op_determinism_enabled())


def function_of_a_model(function: Any) -> Any:
    """Return the tf.function of what each model of a process traces, of which TensorFlow would warn.

    It counts how often functions of the same code are traced, such as those of several models that are tried.
    """
    function = tf.function(function, autograph=False, reduce_retracing=True)
    function._omit_frequent_tracing_warning = True
    return function


def is_no_more_than_code(function: Any) -> bool:
    """Return whether the Python code of a tf.function computes what the function does, in any graph.

    XLA may compute what TensorFlow cannot; a signature converts what the function is called with; and a
    decorator, such as tf.custom_gradient, may change what is computed.
    """
    decorators, _ = tf_decorator.unwrap(function.python_function)
    is_plain = all(each.decorator_name in _DECORATORS_OF_FUNCTIONS for each in decorators)
    return is_plain and not function.input_signature and not function._jit_compile


def code_of(function: Any) -> Callable[..., Any]:
    """Return the Python code of a tf.function, which AutoGraph converts as if the function were traced."""
    if not function._autograph:
        unconverted: Callable[..., Any] = autograph.do_not_convert(function.python_function)
        return unconverted
    _, code = tf_decorator.unwrap(function.python_function)
    enabled = ag_ctx.ControlStatusCtx(status=ag_ctx.Status.ENABLED)
    converted = autograph.convert(recursive=True, conversion_ctx=enabled)(code)

    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return converted(*args, **kwargs)
        except autograph.StagingError as error:  # in the place of an error that AutoGraph cannot extend
            raise own_error(error) from None

    return run


def only_trace(function: Any) -> Any:
    """Return the concrete function of a tf.function that was traced once; None in other cases."""
    traces = list(function._list_all_concrete_functions())
    return traces[0] if len(traces) == 1 else None


def schedule_traced(coordinator: Any, trace: Any, args: Sequence[Any]) -> Any:
    """Schedule a concrete function as `ClusterCoordinator.schedule` does, without the scope for tracing."""
    for argument in args:
        if isinstance(argument, _AskedWhenSent):
            argument.is_traced = True
    return coordinator._cluster.schedule(trace, args=args, kwargs=None)


def has_failed(coordinator: Any) -> bool:
    """Return whether the next call to a coordinator raises the error of a worker."""
    return coordinator._cluster.closure_queue._error is not None


def has_answered(closure: Any) -> bool:
    """Return whether what was scheduled has ended, and its results have come; `fetch` would wait for it."""
    return has_result(closure) or closure._error is not None


def has_result(closure: Any) -> bool:
    """Return whether the results of what was scheduled have come; no worker does it again then."""
    return bool(closure._has_fetched_to_local)


def wait_for_answer(closure: Any, seconds: float) -> bool:
    """Wait until what was scheduled has ended, or the time is over; return whether it has ended.

    Its results are copied to this process a little later.
    """
    return bool(closure._status_available_event.wait(seconds))


class _AskedWhenSent(coordinator_values.PerWorkerValues):  # type: ignore[misc]
    """An argument that the coordinator asks for its value whenever it sends the function to a worker.

    It asks for the value of worker 0 first, to trace the function.
    """

    def __init__(self, example: tf.Tensor, value: Callable[[int], tf.Tensor]) -> None:
        self.example, self.value, self.is_traced = example, value, False

    @property
    def _values(self) -> "_AskedWhenSent":
        return self

    def __getitem__(self, worker: int) -> tf.Tensor:
        if self.is_traced:
            return self.value(worker)
        self.is_traced = True
        return self.example


def asked_when_sent(example: tf.Tensor, value: Callable[[int], tf.Tensor]) -> Any:
    """Return an argument of `ClusterCoordinator.schedule`, of which a function gets the value.

    Args:
        example: A value to trace the function with.
        value: A function that returns the value for the index of a worker. The coordinator calls it in this
            worker's thread, also when it sends the function again because another worker was lost.
    """
    return _AskedWhenSent(example, value)


def dispatched_worker_index() -> tf.Tensor:
    """Return, in a graph that a coordinator sends out, the index of the worker that runs it.

    TensorFlow before 2.13 has the parts that the public function is made of, and not the function.
    """
    current = getattr(tf.distribute.coordinator, "experimental_get_current_worker_index", None)
    if current is not None:
        return current()
    graph = tf.compat.v1.get_default_graph()
    spec = tf.TensorSpec([], tf.int64)
    return graph.capture_call_time_value(dispatched_worker, spec, key="worker_index")


def dispatched_worker() -> int:
    """Return the index of the worker whose thread of a coordinator calls this."""
    return int(coordinator_context.get_current_dispatch_context().worker_index)


def create_on_workers(coordinator: Any, make: Callable[..., Any], args: Sequence[Any] = ()) -> Any:
    """Return what a function makes for each worker; it makes it again for a worker that comes back.

    The coordinator calls the function in the worker's thread, where it places operations on the worker.

    Args:
        coordinator: TensorFlow's coordinator.
        make: The function.
        args: Its arguments, each of which another call has returned. They are made before what it returns.
    """
    return coordinator._create_per_worker_resources(make, args=tuple(args))


def iterators_on_workers(coordinator: Any, make: Callable[[Any], Any], kept: Any, dataset: Any) -> Any:
    """Return the iterators that a function opens on the workers.

    Args:
        coordinator: TensorFlow's coordinator.
        make: A function that opens an iterator, as for `create_on_workers`.
        kept: Its argument, which `create_on_workers` has returned.
        dataset: A data set of the spec of those of the iterators, as the output of a function.
    """
    iterators = create_on_workers(coordinator, make, [kept])
    spec = input_lib.get_iterator_spec_from_dataset(coordinator.strategy, dataset)
    for remote_value in iterators._values:
        remote_value._type_spec = spec
    return coordinator_values.PerWorkerDistributedIterator(iterators._values)
