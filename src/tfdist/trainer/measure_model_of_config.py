"""Build the model of a config in this process, and measure its sizes; nothing is trained."""

import math
import re
import resource
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from tfdist._utils.keras_2_and_3 import all_variables, as_in_keras
from tfdist._utils.nested_optimizers import optimizer_variables
from tfdist.datasets.open_data import Data, open_data
from tfdist.trainer.config import Config
from tfdist.trainer.model_and_replica_sizes import ModelSizes, VariableSizes
from tfdist.trainer.model_of_config import compiled_model, find_outputs

_BYTES_OF_LABEL = 4


class _Traced(NamedTuple):
    """What the trace of a step shows.

    Attributes:
        kept: The bytes of the tensors of the forward pass that the backward pass reads.
        largest: The bytes of the largest tensor with a row for each example.
        rows: For each trained variable, how many of its rows an example reads; 0 for all.
    """

    kept: int
    largest: int
    rows: list[int]


def measure_model(config: Config, examples: int) -> ModelSizes:
    """Return the sizes of the model and the data that a config names.

    Args:
        config: The config.
        examples: How many examples of a batch a replica computes.

    Raises:
        ConfigError: The model or its optimizer cannot be built, or has layers without a shape.
        DataError: The data are unavailable.
    """
    memory = memory_of_this_process()
    data = open_data(**config.data.wanted())
    if config.strategy.precision is not None:
        tf.keras.mixed_precision.set_global_policy(config.strategy.precision)
    return sizes_of(compiled_model(config, data, find_outputs(config, data)), data, config, examples, memory)


def sizes_of(model: Any, data: Data, config: Config, examples: int, memory: tuple[int, int]) -> ModelSizes:
    """Return the sizes of a compiled model and its data.

    Args:
        model: The model.
        data: The data.
        config: The config, which says how the data are augmented.
        examples: How many examples of a batch a replica computes.
        memory: What `memory_of_this_process` returned before the model and the data were made.

    Raises:
        ConfigError: The model has layers without a shape.
    """
    private, libraries = memory
    image, label = data.train(examples, augment=config.data.augment).element_spec
    traced = _traced(model, image)
    return ModelSizes(
        variables=tuple(_variables(model, traced.rows)),
        kept=traced.kept,
        largest=traced.largest,
        example=sum(spec.shape.num_elements() * spec.dtype.size for spec in (image, label)) // examples,
        train_data=data.train_examples * (math.prod(data.image_shape) + _BYTES_OF_LABEL),
        test_data=data.test_examples * (math.prod(data.image_shape) + _BYTES_OF_LABEL),
        private=private,
        libraries=libraries,
    )


def _variables(model: Any, rows_read: Sequence[int]) -> Iterator[VariableSizes]:
    optimizer = model.optimizer
    if hasattr(optimizer, "build"):  # not in Keras 2's older optimizers
        optimizer.build(model.trainable_variables)
    trained = {id(variable) for variable in model.trainable_variables}
    values = sum(bytes_of(variable) for variable in model.trainable_variables)
    # Scalars are the step and the learning rate.
    slots = sum(bytes_of(variable) for variable in optimizer_variables(optimizer) if len(variable.shape))
    rows = {id(variable): count for variable, count in zip(model.trainable_variables, rows_read, strict=True)}
    for variable in all_variables(model):
        is_trained = id(variable) in trained
        yield VariableSizes(
            name=str(getattr(variable, "path", variable.name)),
            shape=tuple(variable.shape),
            value=bytes_of(variable),
            slots=round(bytes_of(variable) * slots / values) if is_trained else 0,
            is_trained=is_trained,
            rows_per_example=rows.get(id(variable), 0),
        )


def bytes_of(variable: Any) -> int:
    """Return the bytes of a variable's value."""
    return int(math.prod(variable.shape) * tf.as_dtype(variable.dtype).size)


def _traced(model: Any, images: tf.TensorSpec) -> "_Traced":
    """Trace the forward and the backward pass on a batch, which computes nothing."""
    counts: list[int] = []
    gradients: list[Any] = []

    def trace(images: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            outputs = as_in_keras(model, model)(images, training=True)
            loss = tf.add_n([tf.reduce_sum(tf.cast(one, tf.float32)) for one in tf.nest.flatten(outputs)])
        counts.append(len(images.graph.get_operations()))
        weights = [
            each if isinstance(each, tf.Variable) else each.value for each in model.trainable_variables
        ]
        gradients.extend(tape.gradient(loss, weights))

    graph = tf.function(trace, autograph=False).get_concrete_function(images).graph
    operations = graph.get_operations()
    forward = {tensor.ref() for operation in operations[: counts[0]] for tensor in operation.outputs}
    read = {_original(tensor).ref() for operation in operations[counts[0] :] for tensor in operation.inputs}
    kept = [_size(ref.deref()) for ref in read & forward if not _is_of_variable(ref.deref())]
    made = [tensor for operation in operations for tensor in operation.outputs]
    examples = images.shape[0]
    of_batch = [_size(tensor) for tensor in made if tensor.shape.rank and tensor.shape[0] == examples]
    return _Traced(sum(kept), max(of_batch, default=0), [_rows(each) // examples for each in gradients])


def _rows(gradient: Any) -> int:
    """Return the rows of a sparse gradient; 0 if it is dense."""
    is_sparse = isinstance(gradient, tf.IndexedSlices)
    return (gradient.indices.shape.num_elements() or 0) if is_sparse else 0


def _original(tensor: tf.Tensor) -> tf.Tensor:
    """Return the tensor whose memory an operation that only gives it another shape or name shares."""
    while tensor.op.type in ("Identity", "Reshape", "Squeeze", "ExpandDims", "StopGradient"):
        tensor = tensor.op.inputs[0]
    return tensor


def _is_of_variable(tensor: tf.Tensor) -> bool:
    return tensor.op.type in ("ReadVariableOp", "Const", "VarHandleOp", "Placeholder")


def _size(tensor: tf.Tensor) -> int:
    if tensor.dtype in (tf.resource, tf.variant, tf.string):
        return 0
    return int((tensor.shape.num_elements() or 0) * tensor.dtype.size)


def memory_of_this_process() -> tuple[int, int]:
    """Return the bytes that this process has for itself, and those of the files that it has mapped."""
    status = Path("/proc/self/status")
    if not status.exists():
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most * (1 if sys.platform == "darwin" else 1024), 0
    found = dict(re.findall(r"^(RssAnon|RssFile):\s+([0-9]+) kB", status.read_text("utf-8"), re.MULTILINE))
    return int(found["RssAnon"]) * 1024, int(found["RssFile"]) * 1024
