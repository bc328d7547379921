"""Describe batches whose tensors have other numbers of rows, also where a check in a graph has found them."""

import re
from collections.abc import Iterable

from tfdist.errors import DataError

# The texts of the checks, which TensorFlow's errors contain, with the numbers behind them.
OTHER_ROWS = "the tensors of a batch have other numbers of rows:"
UNEQUAL_PARTS = "zipped batches do not split into equal parts:"
_NUMBERS = re.compile(rf"({OTHER_ROWS}|{UNEQUAL_PARTS})\] \[([\d ]+)")


def uneven_rows(error: Exception) -> DataError | None:
    """Return what an error of TensorFlow means, if it comes from one of the checks."""
    found = _NUMBERS.search(str(error))
    if found is None:
        return None
    numbers = list(map(int, found[2].split()))
    if found[1] == OTHER_ROWS:
        return other_rows(numbers)
    return DataError(
        "the data set",
        expected="zipped batches of several sizes, of each of which each replica gets an equal part",
        received=f"batches of {' and '.join(map(str, numbers))} examples",
        remedy="Use batch(…, drop_remainder=True) with multiples of the number of replicas",
    )


def other_rows(numbers: Iterable[int]) -> DataError:
    """Return the error of tensors that have these numbers of rows."""
    return no_row_for_each_example(f"tensors of {' and '.join(map(str, sorted(set(numbers))))} rows")


def no_row_for_each_example(received: str) -> DataError:
    """Return the error of a batch in which a tensor lacks rows."""
    return DataError(
        "the data set",
        expected="a row for each example in all tensors of a batch, of which each replica gets a part",
        received=received,
        remedy="Repeat what is the same for all examples (tf.repeat), or train on one_device",
    )
