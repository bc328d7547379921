"""Make data sets from what Keras's fit, evaluate and predict accept: arrays, PyDatasets, generators.

Keras's own adapters make them, so a seed gives the same order as in one process.
"""

import contextlib
import functools
import inspect
import random
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist._utils.keras_2_and_3 import is_keras_2, keras_of
from tfdist._utils.keras_private import (
    adapters_of_keras_2,
    are_arrays,
    class_weight_mapper,
    epoch_iterator,
    split_arrays,
)
from tfdist._utils.strategy_kinds import has_mirrored_workers, is_asynchronous
from tfdist._utils.tf_private import worker_count
from tfdist.errors import DataError, shown
from tfdist.training.data.inspect_dataset import MOST_BYTES
from tfdist.training.data.python_data_of_workers import note_as_indexed
from tfdist.training.keras.py_dataset_hooks import has_hooks
from tfdist.training.keras.py_dataset_threads import restart_for_each_pass

# The global seed that `tf.compat.v1.get_seed` returns if nobody has set one.
_NO_SEED = 87654321
# The adapters of Keras 2 that slice what they get.
_OF_ARRAYS_IN_KERAS_2 = (
    "CompositeTensorDataAdapter", "GenericArrayLikeDataAdapter", "ListsOfScalarsDataAdapter",
    "TensorLikeDataAdapter",
)  # fmt: skip
# The packages whose errors are about what they were given.
_NOT_OF_USERS = ("keras", "numpy", "optree", "pandas", "scipy", "tensorflow", "tf_keras", "tfdist", "tree")
_LONGEST = 300  # characters; Keras's messages may contain whole arrays


def made_data(
    model: Any,
    strategy: tf.distribute.Strategy,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    batch_size: int | None = None,
    steps: int | None = None,
    shuffle: bool | str = False,
    class_weight: Any = None,
    seed: int | None = None,
) -> Any:
    """Return data as a data set of batches; a data set or a function of an input context stays as it is.

    Without a seed of the user's, `seed` shuffles arrays in an order that another process can repeat.

    Raises:
        DataError: Keras does not accept the data, or TensorFlow cannot send them to workers.
    """
    if x is None:
        raise DataError("x", "is None", remedy="Pass arrays, a tf.data.Dataset or a PyDataset")
    if class_weight is not None and not isinstance(class_weight, Mapping):
        remedy = "Pass dict(enumerate(weights)), if weights are those of the classes 0, 1, 2, …"
        expected = "a dict of the weight of each class"
        raise DataError("class_weight", expected=expected, received=shown(class_weight), remedy=remedy)
    if isinstance(x, (tf.data.Dataset, tf.distribute.DistributedDataset)):
        _refuse_beside("a tf.data.Dataset", y=y, sample_weight=sample_weight)
        return x if class_weight is None else _weighted_set(model, x, class_weight)
    if callable(x) and not tf.is_tensor(x):
        _refuse_beside("a function that makes a data set", y=y, sample_weight=sample_weight)
        _check_function(x)
        if class_weight is not None:
            problem = "is not supported with a function that makes a data set"
            raise DataError("class_weight", problem, remedy="Yield (x, y, sample_weight) from it")
        return x
    if class_weight is not None and sample_weight is not None and not is_keras_2(model):
        problem = "is given beside sample_weight, and Keras 3 takes one of them"
        raise DataError("class_weight", problem, remedy="Multiply the weights into sample_weight")
    adapt = functools.partial(
        _adapted, model, strategy, x, y, sample_weight, steps=steps, class_weight=class_weight
    )
    try:
        is_sliced = _is_sliced(model, x, y, sample_weight)
        # Keras 2 makes one data set for all epochs. Begun again for each epoch, it would repeat its order.
        is_apart = seed is not None or _is_read_apart(strategy, (x, y, sample_weight))
        is_apart = is_apart and not is_seeded()
        if shuffle and (is_apart or is_keras_2(model)) and is_sliced:
            size = batch_size or (-(-length(x) // steps) if steps else 32)
            whole = adapt(batch_size=length(x), shuffle=False)
            return _shuffled(whole, size, seed, is_within_batches=shuffle == "batch")
        adapted = adapt(batch_size=batch_size, shuffle=shuffle)
        if not hasattr(x, "__next__"):
            note_as_indexed(adapted)
        return _with_none(adapted)
    except (IndexError, TypeError, ValueError) as error:
        if isinstance(error, DataError) or _is_raised_by_user(error):
            raise
        raise DataError("x", _in_one_line(error)) from error


def _refuse_beside(kind: str, **given: Any) -> None:
    """Refuse what belongs to arrays beside an x of another kind."""
    for name, value in given.items():
        if value is not None:
            remedy = "Yield (x, y, sample_weight) from x"
            raise DataError(name, f"is given beside x, {kind}", remedy=remedy)


def _check_function(make: Callable[..., Any]) -> None:
    """Refuse a function that does not make a data set for an input context."""
    name = getattr(make, "__name__", "x")
    if inspect.isgeneratorfunction(make):
        raise DataError("x", "is a generator function, not a generator", remedy=f"Pass {name}()")
    try:
        inspect.signature(make).bind(None)
    except TypeError:
        expected = "a function of one argument, the tf.distribute.InputContext"
        remedy = f"Write def {name}(context), or pass the data set itself, {name}()"
        raise DataError("x", expected=expected, received=f"the function {name}", remedy=remedy) from None
    except ValueError:  # of a function without a signature
        return


def _weighted_set(model: Any, dataset: Any, class_weight: Any) -> tf.data.Dataset:
    """Return a user's data set whose examples have the weights of their classes.

    Raises:
        DataError: Its batches have weights, or several targets.
    """
    if isinstance(dataset, tf.distribute.DistributedDataset):
        problem = "is not supported with a data set that is distributed already"
        raise DataError("class_weight", problem, remedy="Pass the data set itself, or weights within it")
    try:
        return _weighted_by_class(model, dataset, class_weight)
    except (IndexError, TypeError, ValueError) as error:
        text = _in_one_line(error).rpartition("ValueError: ")[2]
        raise DataError("class_weight", text, remedy="Yield (x, y, sample_weight) from x") from error


def _is_sliced(model: Any, x: Any, y: Any, sample_weight: Any) -> bool:
    """Return whether Keras slices the data, and so can read their examples in any order."""
    if is_keras_2(model):
        module = adapters_of_keras_2(keras_of(model))
        return module.select_data_adapter(x, y).__name__ in _OF_ARRAYS_IN_KERAS_2
    return are_arrays(keras_of(model), (x, y, sample_weight))


def _is_raised_by_user(error: BaseException) -> bool:
    """Return whether an error is from code of the user's, such as a PyDataset or a generator."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    packages = {str(frame.f_globals.get("__name__")).partition(".")[0] for frame in frames}
    return bool(packages.difference(_NOT_OF_USERS, sys.stdlib_module_names))


def _adapted(
    model: Any,
    strategy: tf.distribute.Strategy,
    x: Any,
    y: Any,
    sample_weight: Any,
    *,
    steps: int | None,
    class_weight: Any,
    **options: Any,
) -> tf.data.Dataset:
    """Return the data set of Keras's own adapter, with the number of batches if the adapter knows it.

    The options are `batch_size` and `shuffle`.
    """
    if is_keras_2(model):
        module = adapters_of_keras_2(keras_of(model))
        options |= {"sample_weights": sample_weight, "distribution_strategy": strategy, "model": model}
        adapter = module.select_data_adapter(x, y)(x, y, steps=steps, **options)
        dataset, count = adapter.get_dataset(), adapter.get_size()
        if class_weight:
            dataset = _weighted_by_class(model, dataset, class_weight)
    else:
        options |= {"sample_weight": sample_weight, "class_weight": class_weight}
        adapter = epoch_iterator(keras_of(model))(x, y=y, steps_per_epoch=steps, **options).data_adapter
        restart_for_each_pass(adapter)
        dataset, count = adapter.get_tf_dataset(), adapter.num_batches
        if count is None and has_hooks(model, x):
            count = tf.data.INFINITE_CARDINALITY
    if count is None or int(dataset.cardinality()) >= 0:
        return dataset
    return dataset.apply(tf.data.experimental.assert_cardinality(count))


def _weighted_by_class(model: Any, dataset: tf.data.Dataset, class_weight: Any) -> tf.data.Dataset:
    """Return a data set whose examples have the weights of their classes."""
    return dataset.map(class_weight_mapper(keras_of(model), class_weight, is_old=is_keras_2(model)))


def _with_none(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Return a data set with None for an optional input without a value, which Keras's adapters mark."""
    if not any(isinstance(spec, tf.OptionalSpec) for spec in tf.nest.flatten(dataset.element_spec)):
        return dataset

    def unmarked(part: Any) -> Any:
        return None if isinstance(part, tf.experimental.Optional) else part

    return dataset.map(lambda *parts: tf.nest.map_structure(unmarked, parts))


@contextlib.contextmanager
def random_state_kept() -> Iterator[None]:
    """Restore the states of Python's and NumPy's random generators after the block.

    An adapter of Keras reads two batches of a PyDataset or generator to learn their shapes. Those of
    validation data may draw random numbers, which Keras's own `fit` draws only after the first epoch.
    """
    of_python, of_numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)


def validation_parts(validation_data: Any) -> tuple[Any, ...]:
    """Return the x, y and sample_weight that `fit`'s validation_data contain."""
    if isinstance(validation_data, list):
        validation_data = tuple(validation_data)
    if not isinstance(validation_data, tuple):
        return (validation_data,)
    if not 1 <= len(validation_data) <= 3:
        received = f"a tuple of {len(validation_data)}"
        raise DataError("validation_data", expected="(x, y) or (x, y, sample_weight)", received=received)
    return validation_data


def split(model: Any, arrays: tuple[Any, ...], share: float) -> tuple[Any, Any]:
    """Return the arrays without their last part, and that part, to validate on."""
    try:
        return split_arrays(keras_of(model), arrays, share, is_old=is_keras_2(model))
    except ValueError as error:
        raise DataError("validation_split", _in_one_line(error)) from error


def _is_of_several_workers(strategy: tf.distribute.Strategy) -> bool:
    return has_mirrored_workers(strategy) and worker_count(strategy) > 1


def _is_read_apart(strategy: tf.distribute.Strategy, arrays: Any) -> bool:
    """Return whether several processes read the arrays, each for itself."""
    if _is_of_several_workers(strategy):
        return True
    size = sum(getattr(part, "nbytes", 0) for part in tf.nest.flatten(arrays))
    return is_asynchronous(strategy) and size <= MOST_BYTES


def is_seeded() -> bool:
    """Return whether the user has set a seed, from which every process makes Keras's order."""
    return bool(tf.compat.v1.get_seed(1)[0] != _NO_SEED)


def check_seeded(model: Any, x: Any, shuffle: bool | str) -> None:
    """Refuse a PyDataset that Keras shuffles in an order which another process cannot repeat."""
    if shuffle and has_hooks(model, x) and not is_seeded():
        problem = "a PyDataset is shuffled without a seed: a resumed run would lose and repeat batches"
        raise DataError(
            "x", problem, remedy="Call keras.utils.set_random_seed(…) first, or pass shuffle=False"
        )


def _shuffled(
    whole: tf.data.Dataset, batch_size: int, seed: int | None, *, is_within_batches: bool
) -> tf.data.Dataset:
    """Return shuffled batches; processes that `make_strategy` has connected draw the same seed.

    The numbers of the rows are shuffled, so the arrays are not copied once more.
    """
    [arrays] = _with_none(whole)
    count = length(arrays)
    if seed is None:
        seed = new_seed()
    if any(
        isinstance(part, tf.SparseTensor) for part in tf.nest.flatten(arrays)
    ):  # whose rows have no numbers
        examples = tf.data.Dataset.from_tensor_slices(arrays)
        return (examples if is_within_batches else examples.shuffle(count, seed=seed)).batch(batch_size)
    numbers = tf.data.Dataset.range(count)
    if is_within_batches:
        rows = numbers.batch(batch_size).map(lambda batch: tf.random.shuffle(batch, seed=seed))
    else:
        rows = numbers.shuffle(count, seed=seed).batch(batch_size)

    def gathered(batch: tf.Tensor, data: Any) -> Any:
        return tf.nest.map_structure(lambda part: None if part is None else tf.gather(part, batch), data)

    pairs = tf.data.Dataset.zip((rows, tf.data.Dataset.from_tensors(arrays).repeat()))
    return pairs.map(gathered, num_parallel_calls=tf.data.AUTOTUNE)


def new_seed() -> int:
    """Return a seed, the same in all processes whose random state `make_strategy` has copied."""
    return int(np.random.randint(2**31 - 1))


def length(x: Any) -> int:
    """Return the number of examples in arrays or tensors, or in a structure of them."""
    first = next(part for part in tf.nest.flatten(x) if part is not None)
    return int(first.shape[0]) if hasattr(first, "shape") else len(first)  # of a list


def _in_one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
