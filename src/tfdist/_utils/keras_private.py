"""Use Keras's private API, which no other file of tfdist does.

The names were seen in Keras 3.15, where a function does not list others; 2.12 stands for Keras 2, also called
tf_keras. A function's parameters are called by the kind of object that they are, such as `model` or
`optimizer`: tests/unit/test_private_names.py reads kinds, names and versions from here, and asserts that the
installed Keras has them.
"""

import contextlib
import copy
import functools
import importlib
import threading
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import tensorflow as tf

from tfdist._utils.temporary_patches import attributes_set


def is_of_keras(kind: Any) -> bool:
    """Return whether a class or function is one of Keras's own."""
    return str(kind.__module__).partition(".")[0] in ("keras", "tf_keras")


# -- models and layers --


def trainable_as_compiled_keras_2(keras: ModuleType, model: Any) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which `trainable` of each layer is that of `compile`, as in Keras 2's `fit`.

    Seen in 2.12.
    """
    module = importlib.import_module(keras.Model.__module__)
    context: contextlib.AbstractContextManager[Any] = module.training_utils.RespectCompiledTrainableState(
        model
    )
    return context


def is_compiled(model: Any) -> bool:
    """Return whether a model is compiled, which Keras 3 says in `compiled`. Seen in 2.12."""
    return bool(getattr(model, "compiled", False) or getattr(model, "_is_compiled", False))


def build_model(model: Any, batch_spec: Any) -> None:
    """Build a model, its metrics and its optimizer for a batch as it comes from the data."""
    # An optional input may be None, for which tf.data has a spec without a shape.
    batch = tf.nest.map_structure(lambda spec: spec if hasattr(spec, "shape") else None, batch_spec)
    model._symbolic_build(data_batch=batch)


def build_metrics_of_own(keras: ModuleType, model: Any, batch: tuple[Any, Any, Any]) -> None:
    """Build the metrics that a model updates itself, for the specs of x, y and sample weights.

    Keras calls `compute_metrics` beforehand only if metrics are compiled.
    """
    if all(metric.variables for metric in model.metrics):
        return
    module: Any = importlib.import_module(f"{keras.__name__}.src.backend")
    x, y, sample_weight = tf.nest.map_structure(
        lambda spec: keras.KerasTensor(spec.shape, spec.dtype.name) if hasattr(spec, "shape") else None, batch
    )
    with contextlib.suppress(Exception):  # a real error comes again when the step is traced
        y_pred = module.compute_output_spec(model, x, training=False)
        module.compute_output_spec(model.compute_metrics, x, y, y_pred, sample_weight=sample_weight)


def build_model_eagerly(keras: ModuleType, model: Any, batch: tuple[Any, Any, Any]) -> None:
    """Build a model, its metrics and its optimizer for x, y and sample weights, without a graph.

    The functions of losses and metrics are not called.
    """
    x, y, _ = batch
    with keras.StatelessScope() if model.built else contextlib.nullcontext():
        y_pred = model(x)
    for part in (model._compile_metrics, model._compile_loss):
        if part is not None and not part.built:
            part.build(y, y_pred)
    if model.optimizer is not None and not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    model._post_build()


def call_model(model: Any, x: Any, *, training: bool) -> Any:
    """Call a model of Keras 3, with `training` if its `call` takes that."""
    return model(x, training=training) if model._call_has_training_arg else model(x)


def compiled_loss(
    model: Any, *, x: Any, y: Any, y_pred: Any, sample_weight: Any, training: bool
) -> tf.Tensor:
    """Return the loss that a model of Keras 3 is compiled with and those of its layers, as `fit` does."""
    return model._compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=training)


def added_losses(model: Any) -> list[tf.Tensor]:
    """Return the losses that the layers of a model have added, each as it counts in the whole.

    Keras adds up one that has a row for each example.
    """
    return [model._aggregate_additional_loss(loss) for loss in model.losses]


class _IdsOfThread(threading.local):
    """The ids of what a layer adds as losses, for each thread its own."""

    def __init__(self) -> None:
        self.ids: set[int] = set()

    def __contains__(self, found: int) -> bool:
        return found in self.ids

    def add(self, new: int) -> None:
        self.ids.add(new)

    def clear(self) -> None:
        self.ids.clear()


@contextlib.contextmanager
def added_losses_of_threads(model: Any) -> Iterator[None]:
    """Keep apart, within the block, what layers add as losses in each thread.

    A model of Keras 3 that is called forgets the losses of earlier calls. Replicas that wait for each other
    in a synchronized layer have all begun their calls, and one would forget the losses of another.
    """
    with contextlib.ExitStack() as stack:
        for layer in layers_of(model):
            stack.enter_context(attributes_set(layer, _loss_ids=_IdsOfThread()))
        yield


# What TensorFlow names operations that compute moments.
MOMENTS = "moments"


@contextlib.contextmanager
def masked_moments_synchronized(keras: ModuleType, model: Any) -> Iterator[None]:
    """Normalize, within the block, by the moments of all replicas where a synchronized layer has a mask too.

    Keras 3 takes those of a replica there, as if the layer were not synchronized.
    """
    with contextlib.ExitStack() as stack:
        for norm in layers_of(model):
            if isinstance(norm, keras.layers.BatchNormalization) and norm.synchronized:
                moments = functools.partial(_moments_of_all, norm, norm._moments, keras.config.epsilon())
                stack.enter_context(attributes_set(norm, _moments=moments))
        yield


def _moments_of_all(
    norm: Any, without_mask: Callable[[Any, None], Any], epsilon: float, inputs: Any, mask: Any
) -> tuple[Any, Any]:
    """Return what Keras computes of unmasked values, from the values of all replicas."""
    with tf.name_scope(MOMENTS):
        if mask is None:
            mean, variance = without_mask(inputs, None)
            return mean, variance
        return _masked_moments(norm, epsilon, inputs, mask)


def _masked_moments(norm: Any, epsilon: float, inputs: Any, mask: Any) -> tuple[Any, Any]:
    is_unmasked = tf.broadcast_to(tf.cast(mask, tf.bool)[..., tf.newaxis], tf.shape(inputs))

    def unmasked(values: Any) -> Any:
        return tf.where(is_unmasked, values, tf.zeros_like(values))

    def total(values: Any) -> Any:
        values = tf.reduce_sum(values, norm._reduction_axes, keepdims=True)
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, values)

    number = total(tf.cast(is_unmasked, inputs.dtype)) + epsilon
    mean = total(unmasked(inputs)) / number
    variance = total(tf.square(unmasked(inputs - mean))) / number
    return tf.squeeze(mean), tf.squeeze(variance)


def layers_of(model: Any) -> list[Any]:
    """Return a model and all layers within it, at any depth. Seen in 2.12 and 3.15."""
    return list(model._flatten_layers())


def seed_generators(layer: Any) -> list[Any]:
    """Return the random generators of a layer itself."""
    return list(layer._seed_generators)


def compiled_steps_per_execution(model: Any) -> Any:
    """Return the number of steps in one call that a model is compiled with; in Keras 2 the variable of it.

    Seen in 2.12.
    """
    number = getattr(model, "steps_per_execution", None)
    return model._steps_per_execution if number is None else number


def compile_arguments(model: Any) -> dict[str, Any]:
    """Return the arguments that a model was compiled with, as they were given. Seen in 2.12 and 3.15."""
    return dict(model._compile_config.config)


def made_by_compile(model: Any) -> Any:
    """Return an object that each `compile` of a model makes again; None if it is not compiled."""
    if not hasattr(model, "_loss_tracker"):
        return getattr(model, "compiled_loss", None)  # Keras 2, where it is public
    return model._loss_tracker


def batch_counter(model: Any, phase: str) -> Any:
    """Return the variable that counts the batches of a phase, train or test. Seen in 2.12."""
    return model._train_counter if phase == "train" else model._test_counter


def count_of_compiled_losses(model: Any) -> int:
    """Return how many losses a model is compiled with that it computes for a batch."""
    trackers = [] if model._compile_loss is None else model._compile_loss.metrics
    return 0 if model._compile_loss is None else max(1, len(trackers))


# -- metrics --


def loss_trackers(model: Any) -> list[Any]:
    """Return the metric of a model's loss, and where it has several outputs those of their losses."""
    return [model._loss_tracker, *([] if model._compile_loss is None else model._compile_loss.metrics)]


def compiled_metrics_are_built(model: Any) -> bool:
    """Return whether the metrics that a model is compiled with have their variables."""
    return model._compile_metrics is None or bool(model._compile_metrics.built)


def values_in_order(model: Any, logs: dict[str, Any]) -> Any:
    """Return the values of logs in the order of the metrics, or the only one."""
    return model._flatten_metrics_in_order(logs)


def variables_of_metric(metric: Any) -> list[Any]:
    """Return the variables of a metric itself."""
    return list(metric._variables)


def metrics_within(metric: Any) -> tuple[list[Any], bool]:
    """Return the metrics within a metric, and whether it is Keras's list of those that compile was given."""
    if type(metric).__name__ == "CompileMetrics":
        return list(metric.metrics), True
    return list(metric._metrics), False


# -- callbacks --


def list_of_callbacks(keras: ModuleType, callbacks: Sequence[Any], **options: Any) -> Any:
    """Return Keras's CallbackList.

    Keras 2 refuses hooks of batches in a scope of parameter servers, whose workers hand over values that are
    not there yet: tfdist hands over numbers. Seen in 2.12.
    """
    callback_list = keras.callbacks.CallbackList
    if not hasattr(callback_list, "_disallow_batch_hooks_in_ps_strategy"):
        return callback_list(list(callbacks), **options)
    with attributes_set(callback_list, _disallow_batch_hooks_in_ps_strategy=lambda _: None):
        return callback_list(list(callbacks), **options)


def allow_any_strategy(backup: Any) -> None:
    """Allow BackupAndRestore of Keras 2 under any strategy; it accepts only those that it was tested with.

    Seen in 2.12.
    """
    backup._supported_strategies = (tf.distribute.Strategy,)


def forget_epoch_to_resume(model: Any) -> None:
    """Forget the epoch that an earlier BackupAndRestore of Keras 3 has found for a model."""
    if getattr(model, "_initial_epoch", None) is not None:
        model._initial_epoch = None


def epoch_to_resume(model: Any) -> int | None:
    """Return the epoch from which BackupAndRestore of Keras 3 resumes; None without a backup."""
    epoch: int | None = getattr(model, "_initial_epoch", None)
    return epoch


def epoch_to_resume_keras_2(backup: Any, steps: int | None, epoch: int) -> int:
    """Return the epoch that BackupAndRestore of Keras 2 finds in its backup; the given one if it finds none.

    The batch within the epoch is of no use: the data cannot be begun in their middle. Seen in 2.12.
    """
    saved_epoch, _ = backup._training_state.maybe_load_initial_counters_from_ckpt(steps, epoch, "train")
    return int(saved_epoch)


# -- optimizers --


def add_slots(optimizer: Any, variables: Sequence[Any]) -> None:
    """Create the slots of an optimizer of Keras 2. Seen in 2.12."""
    (getattr(optimizer, "build", None) or optimizer._create_all_weights)(variables)


def updated_by(optimizer: Any) -> list[Any]:
    """Return the variables that an optimizer of Keras 3 was built for."""
    return list(optimizer._trainable_variables) if optimizer.built else []


def step_counter(optimizer: Any) -> Any:
    """Return the variable that counts an optimizer's steps; None where there is no optimizer.

    Seen in 2.12 and 3.15.
    """
    return getattr(optimizer, "_iterations", None)


def remake_in_scope(optimizer: Any, variables: Sequence[Any]) -> None:
    """Make variables of an optimizer of Keras 3 again in the scope of now, with their values."""
    optimizer._distribution_strategy = tf.distribute.get_strategy()
    for variable in variables:
        variable._initialize(variable.numpy())


def index_in_multi_optimizer(optimizer: Any, variable: Any) -> int:
    """Return which one of the optimizers within Keras's MultiOptimizer updates a variable."""
    index: int = optimizer._var_to_optimizer_idx[optimizer._var_key(variable)]
    return index


def learning_rate_variable(optimizer: Any) -> Any:
    """Return the variable of an optimizer's learning rate, or its schedule. Seen in 2.12 and 3.15."""
    return getattr(optimizer, "_learning_rate", None)


def excludes_from_decay(optimizer: Any) -> bool:
    """Return whether some variables have no weight decay. Seen in 2.12 and 3.15."""
    return bool(getattr(optimizer, "_exclude_from_weight_decay", None))


def exclude_as(other: Any, optimizer: Any) -> None:
    """Exclude variables from an optimizer's weight decay as another one does. Seen in 2.12 and 3.15."""
    for name, value in vars(other).items():
        if name.startswith("_exclude_from_weight_decay"):
            setattr(optimizer, name, copy.copy(value))


def is_sgd_of_keras(optimizer: Any) -> bool:
    """Return whether an optimizer is Keras's SGD itself: a class derived from it may do something else.

    Seen in 2.12 and 3.15.
    """
    return _is_itself(optimizer, "sgd", "SGD")


def is_adagrad_of_keras(optimizer: Any) -> bool:
    """Return whether an optimizer is Keras's Adagrad itself."""
    return _is_itself(optimizer, "adagrad", "Adagrad")


def _is_itself(optimizer: Any, module: str, name: str) -> bool:
    kind = type(optimizer)
    return is_of_keras(kind) and kind.__module__.endswith(f".optimizers.{module}") and kind.__name__ == name


def adagrad_accumulators(optimizer: Any) -> Sequence[Any]:
    """Return the sums of squared gradients of Keras 3's Adagrad."""
    accumulators: Sequence[Any] = optimizer._accumulators
    return accumulators


def adam_slots(optimizer: Any, variable: Any) -> tuple[Any, Any]:
    """Return TensorFlow's variables of the two moments that Keras 3's Adam has for a variable."""
    return (
        slot_of(optimizer, optimizer._momentums, variable),
        slot_of(optimizer, optimizer._velocities, variable),
    )


def slot_of(optimizer: Any, slots: Sequence[Any], variable: Any) -> Any:
    """Return TensorFlow's variable of the slot that an optimizer of Keras 3 has for a variable."""
    return slots[optimizer._get_variable_index(variable)].value


def slot_of_keras_2(optimizer: Any, slots: Sequence[Any], variable: Any) -> Any:
    """Return the slot that an optimizer of Keras 2 has for a variable. Seen in 2.12."""
    return slots[optimizer._index_dict[optimizer._var_key(variable)]]


def known_gradients(
    optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """Return the gradients that are there, and their variables; warn of the others as Keras does."""
    known: tuple[list[Any], list[Any]] = optimizer._filter_empty_gradients(gradients, variables)
    return known


def accumulators_of(optimizer: Any, variables: Sequence[Any] | None = None) -> list[Any]:
    """Return the variables in which an optimizer adds up gradients of steps, for all or some weights."""
    accumulators = optimizer._accumulated_gradients
    if variables is None:
        return list(accumulators)
    return [accumulators[optimizer._get_variable_index(variable)] for variable in variables]


def accumulate_gradients(optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
    """Add gradients to those of earlier steps."""
    optimizer._backend_increment_gradient_accumulators(gradients, accumulators_of(optimizer, variables))


def apply_update(optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
    """Clip gradients and update variables by them, as `apply` does where it accumulates none."""
    clipped = optimizer._clip_gradients(gradients)
    optimizer._apply_weight_decay(variables)
    optimizer._backend_update_step(clipped, variables, optimizer.learning_rate)


def average_weights(optimizer: Any) -> None:
    """Update the moving averages of the weights."""
    optimizer._update_model_variables_moving_average(optimizer._trainable_variables)


def overwrite_by_averages(optimizer: Any) -> None:
    """Overwrite the weights by their moving averages."""
    optimizer._overwrite_model_variables_with_average_value(optimizer._trainable_variables)


@contextlib.contextmanager
def gradients_added_up_by(optimizer: Any, add_up: Callable[[Any], Any]) -> Iterator[None]:
    """Make an optimizer call `add_up` to add gradients up over the replicas, within the block.

    The optimizer calls it after it has clipped gradients, right before it changes variables.
    """
    with attributes_set(optimizer, _all_reduce_sum_gradients=add_up):
        yield


def has_constraint_of_keras(variable: Any) -> bool:
    """Return whether a variable of Keras 3 has a constraint of Keras itself, which is deterministic."""
    return is_of_keras(type(variable.constraint))


@contextlib.contextmanager
def constraints_ignored(variables: Sequence[Any]) -> Iterator[None]:
    """Make optimizers of Keras 3 leave the constraints of variables out, within the block."""
    with contextlib.ExitStack() as stack:
        for variable in variables:
            stack.enter_context(attributes_set(variable, _constraint=None))
        yield


# -- variables --


def assign_at_once(variable: Any, value: Any) -> None:
    """Assign a value to a variable of Keras 3 within a StatelessScope too."""
    variable._direct_assign(value)


def variable_of_tensorflow(variable: Any) -> Any:
    """Return TensorFlow's variable behind one of Keras 3, and any other variable as it is."""
    return variable._value if hasattr(variable, "path") else variable


def uncast_value(variable: Any) -> Any:
    """Return the value of a variable of Keras 3, without the cast that a layer in mixed precision asks for.

    The first versions of Keras 3 have no such cast.
    """
    with attributes_set(variable, _autocast=False):
        return variable.value


def cast_as_layers_do(variable: Any, value: tf.Tensor) -> tf.Tensor:
    """Cast a part of a variable's value as a layer in mixed precision asks for."""
    return variable._maybe_autocast(value)


# -- modules --


@contextlib.contextmanager
def losses_reduced_by(keras: ModuleType, replace: Callable[[Any], Any]) -> Iterator[None]:
    """Make Keras 3 reduce losses with another function, as for one replica, within the block.

    Some versions scale losses by the number of replicas, and have two functions for that.

    Args:
        keras: The Keras of the model.
        replace: Returns the function, given Keras's own.
    """
    loss_module: Any = importlib.import_module(f"{keras.__name__}.src.losses.loss")
    scaling = ("scale_loss_for_distribution", "unscale_loss_for_distribution")
    unscaled = dict.fromkeys((name for name in scaling if hasattr(loss_module, name)), lambda value: value)
    reduce = replace(loss_module.reduce_weighted_values)
    with attributes_set(loss_module, reduce_weighted_values=reduce, **unscaled):
        yield


@contextlib.contextmanager
def kernels_read_before_xla(keras: ModuleType) -> Iterator[None]:
    """Make Keras 3 read the kernel of a convolution before it calls XLA, within the block.

    Keras computes grouped convolutions on CPUs by XLA, which reads no variable of another device.
    """
    module: Any = importlib.import_module(f"{keras.__name__}.src.backend.tensorflow.nn")
    convolve = module.conv

    def conv(inputs: Any, kernel: Any, *args: Any, **kwargs: Any) -> Any:
        return convolve(inputs, tf.convert_to_tensor(kernel), *args, **kwargs)

    with attributes_set(module, conv=conv):
        yield


@contextlib.contextmanager
def empty_batches_convolved(keras: ModuleType) -> Iterator[None]:
    """Make convolutions and pooling of Keras 3 compute an empty batch, too, within the block.

    On CPUs, TensorFlow computes them by oneDNN, whose convolutions return the shape of their inputs there,
    and whose gradients lack an output or end the process. Seen in 2.21.
    """
    module: Any = importlib.import_module(f"{keras.__name__}.src.backend.tensorflow.nn")
    names = ("conv", "depthwise_conv", "separable_conv", "max_pool", "average_pool")
    with attributes_set(module, **{name: _with_an_example(getattr(module, name)) for name in names}):
        yield


def _with_an_example(compute: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(compute)
    def computed(inputs: Any, *args: Any, **kwargs: Any) -> Any:
        inputs = tf.convert_to_tensor(inputs)
        sizes = tf.shape(inputs)
        missing = tf.cast(tf.equal(sizes[:1], 0), sizes.dtype)
        example = tf.zeros(tf.concat([missing, sizes[1:]], axis=0), inputs.dtype)
        filled = tf.concat([inputs, example], axis=0)
        filled.set_shape([None, *inputs.shape[1:]])
        return compute(filled, *args, **kwargs)[: sizes[0]]

    return computed


@contextlib.contextmanager
def masks_weighed_by(keras: ModuleType, replace: Callable[[Any], Any]) -> Iterator[None]:
    """Make Keras 2 weigh masked losses with another function, given its own, within the block.

    Seen in 2.12.
    """
    package = keras.Model.__module__.rpartition(".engine.")[0]
    module: Any = importlib.import_module(f"{package}.utils.losses_utils")
    with attributes_set(module, apply_valid_mask=replace(module.apply_valid_mask)):
        yield


@contextlib.contextmanager
def losses_may_average(keras: ModuleType) -> Iterator[None]:
    """Permit a loss of Keras 2 that a custom step calls to average over the batch, within the block.

    Keras 2 refuses it under any strategy, since an average over one replica's part is another one; a single
    replica has the whole batch. Seen in 2.12.
    """
    loss_class: Any = keras.losses.Loss
    of_keras = loss_class._get_reduction

    def reduction(loss: Any) -> Any:
        with attributes_set(loss, _allow_sum_over_batch_size=True):
            return of_keras(loss)

    with attributes_set(loss_class, _get_reduction=reduction):
        yield


def mask_weights(keras: ModuleType, sample_weight: Any, mask: Any, dtype: Any, reduction: str) -> Any:
    """Return sample weights times a mask, as Keras 3 multiplies them before it reduces losses."""
    loss_module: Any = importlib.import_module(f"{keras.__name__}.src.losses.loss")
    return loss_module.apply_mask(sample_weight, mask, dtype=dtype, reduction=reduction)


def has_unseeded_generator(keras: ModuleType) -> bool:
    """Return whether Keras 3 has made its generator of unseeded random numbers."""
    state_module: Any = importlib.import_module(f"{keras.__name__}.src.backend.common.global_state")
    return state_module.get_global_attribute("global_seed_generator") is not None


@contextlib.contextmanager
def unseeded_generator(keras: ModuleType, generator: Any) -> Iterator[None]:
    """Make Keras 3 draw unseeded random numbers of this thread from a generator, within the block."""
    state_module: Any = importlib.import_module(f"{keras.__name__}.src.backend.common.global_state")
    name = "global_seed_generator"
    before = state_module.get_global_attribute(name)
    state_module.set_global_attribute(name, generator)
    try:
        yield
    finally:
        state_module.set_global_attribute(name, before)


def adapters_of_keras_2(keras: ModuleType) -> Any:
    """Return the module in which Keras 2 makes data sets of arrays, generators and Sequences.

    Seen in 2.12.
    """
    package = keras.Model.__module__.rpartition(".")[0]
    return importlib.import_module(f"{package}.data_adapter")


def epoch_iterator(keras: ModuleType) -> Any:
    """Return the class in which Keras 3 makes data sets of arrays, generators and PyDatasets."""
    module: Any = importlib.import_module(f"{keras.__name__}.src.trainers.epoch_iterator")
    return module.EpochIterator


def wrap_iterators_of_adapter(adapter: Any, wrap: Callable[[Callable[[], Any]], Any]) -> None:
    """Replace what begins each pass over a PyDataset by a function of it.

    Seen in 3.15.
    """
    adapter._get_iterator = functools.partial(wrap, adapter._get_iterator)


def are_arrays(keras: ModuleType, data: tuple[Any, Any, Any]) -> bool:
    """Return whether Keras 3 slices data: arrays, tensors, lists, and structures of them."""
    name = f"{keras.__name__}.src.trainers.data_adapters.array_data_adapter"
    module: Any = importlib.import_module(name)
    return bool(module.can_convert_arrays(data))


def class_weight_mapper(keras: ModuleType, class_weight: Any, *, is_old: bool) -> Any:
    """Return the function that gives the examples of a data set the weights of their classes.

    Seen in 2.12 and 3.15.
    """
    if is_old:
        return _class_weight_mapper_of_keras_2(adapters_of_keras_2(keras), class_weight)
    name = f"{keras.__name__}.src.trainers.data_adapters.tf_dataset_adapter"
    module: Any = importlib.import_module(name)
    return module.make_class_weight_map_fn(class_weight)


def _class_weight_mapper_of_keras_2(data_adapter: Any, class_weight: Any) -> Any:
    """Return the same function of Keras 2.

    Seen in 2.12.
    """
    return data_adapter._make_class_weight_map_fn(class_weight)


def split_arrays(
    keras: ModuleType, arrays: tuple[Any, ...], share: float, *, is_old: bool
) -> tuple[Any, Any]:
    """Return arrays without their last part, and that part.

    Seen in 2.12 and 3.15.
    """
    name = f"{keras.__name__}.src.trainers.data_adapters.array_slicing"
    module: Any = adapters_of_keras_2(keras) if is_old else importlib.import_module(name)
    parts: tuple[Any, Any] = module.train_validation_split(arrays, validation_split=share)
    return parts


def wrap_names_of_attributes(wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Callable[..., Any]:
    """Wrap the function by which Keras 3 learns, when it saves or loads, what attributes its classes have.

    Earlier versions call it get_attr_skiplist.
    """
    saving_module: Any = importlib.import_module("keras.src.saving.saving_lib")
    name = "get_attr_skipset" if hasattr(saving_module, "get_attr_skipset") else "get_attr_skiplist"
    wrapped = wrap(getattr(saving_module, name))
    setattr(saving_module, name, wrapped)
    return wrapped


def wrap_search_of_classes(wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Callable[..., Any]:
    """Wrap the function by which Keras 3, when it loads a model, finds a registered class by its name."""
    registered_module: Any = importlib.import_module("keras.src.saving.object_registration")
    wrapped = wrap(registered_module.get_registered_object)
    registered_module.get_registered_object = wrapped
    return wrapped
