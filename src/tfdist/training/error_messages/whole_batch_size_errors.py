"""Explain errors of models whose code names rows or the size of a whole batch; a replica gets a part."""

import contextlib
import logging
import re
import sys
from collections.abc import Iterator

import tensorflow as tf

# The first sizes of two shapes in TensorFlow's errors, of a graph that is traced and of one that runs.
_SHAPES = (
    re.compile(r"must be equal, but are (\d+) and (\d+)"),
    re.compile(r"\[(\d+)[\d,]*\] vs\. (?:shape\[\d+\] = )?\[(\d+)"),
    re.compile(r"In\[0\]: \[(\d+)[\d,]*\], In\[1\]: \[(\d+)"),
    re.compile(r"Cannot reshape a tensor with (\d+) elements to shape \S+ \((\d+) elements\)"),
)
_MISSING_ROW = re.compile(r"slice index \d+ of dimension 0 out of bounds")
_OTHER_SIZE = (
    "tfdist: each of {replicas} replicas gets its part of a batch, here {part}, not {whole}. Take the number"
    " of examples from what the model gets, such as tf.shape(x)[0], not the size of the whole batch"
)
_OTHER_ROWS = (
    "tfdist: if this is a row of a batch: each of {replicas} replicas gets a part of the rows of each tensor."
    " Let a row be an example: pairs have the shape (n, 2, ...), not (2, n, ...)"
)
_log = logging.getLogger("tfdist")


@contextlib.contextmanager
def explaining_sizes(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Add a line to an error of a row, or of the size of a whole batch, which a replica does not have."""
    try:
        yield
    except (ValueError, tf.errors.InvalidArgumentError) as error:
        replicas = strategy.num_replicas_in_sync
        part, whole = sorted(_sizes_in(str(error))) or (0, 0)
        if replicas > 1 and part and part * replicas == whole:
            _add_line(error, _OTHER_SIZE.format(replicas=replicas, part=part, whole=whole))
        elif replicas > 1 and _MISSING_ROW.search(str(error)):
            _add_line(error, _OTHER_ROWS.format(replicas=replicas))
        raise


def _add_line(error: Exception, line: str) -> None:
    if sys.version_info >= (3, 11):
        error.add_note(line)  # which Python prints below the traceback
    else:
        _log.error(line)


def _sizes_in(text: str) -> list[int]:
    for pattern in _SHAPES:
        if (found := pattern.search(text)) is not None:
            return [int(size) for size in found.groups()]
    return []
