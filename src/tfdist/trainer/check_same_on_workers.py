"""Check that mirrored workers train with the same config on the same data, before the first step."""

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist._utils.strategy_kinds import has_mirrored_workers
from tfdist._utils.tf_private import worker_count, worker_number
from tfdist.coordination.stall_limit import Activity
from tfdist.coordination.stall_watch import doing
from tfdist.datasets.open_data import Data
from tfdist.errors import ConfigError, DataError
from tfdist.trainer.config import Config, recorded_sections
from tfdist.training.workers.exchange_numbers import sum_over_workers
from tfdist.training.workers.same_call import worker_names

_PARTS = 4  # of 16 bits, which a float32 holds exactly
_DATA = "data"
# Other keys may differ: the chief alone follows them, or they say where this machine has the data.
_SECTIONS = ("model", "train", "evaluation")
_KEYS = {"data": ("batch_size", "augment", "one_hot"), "checkpoint": ("every",), "summaries": ("every",)}


def check_same_on_workers(strategy: tf.distribute.Strategy, config: Config, data: Data) -> None:
    """Compare data and config with those of the other workers; all mirrored workers must call this function.

    Raises:
        ConfigError: A worker has another value of a key.
        DataError: A worker has other data.
    """
    if not has_mirrored_workers(strategy) or worker_count(strategy) < 2:
        return
    compared = dict(_compared(config, data))
    digests = [_digest(value) for value in compared.values()]
    table = np.zeros((worker_count(strategy), len(digests), _PARTS), np.float32)
    table[worker_number(strategy)] = digests
    with doing(Activity("")):  # another worker may be downloading the data
        table = sum_over_workers(strategy, table).numpy()
    differs = (table != table[0]).any(axis=2)
    if not differs.any():
        return
    names, key = worker_names(strategy), list(compared)[int(np.argmax(differs.any(axis=0)))]
    others = [names[index] for index in np.flatnonzero(differs[:, list(compared).index(key)])]
    problem = f"differs between {names[0]} and {' and '.join(others)}"
    if key != _DATA:
        remedy = "Start all tasks with the same file and the same --set"
        raise ConfigError(key, f"{problem}; here it is {json.dumps(compared[key])}", remedy=remedy)
    remedy = "Copy the same files to all machines, or set TFDIST_CACHE_DIR to a folder that they share"
    raise DataError("the data set", f"{problem}; here it is {data.described}", remedy=remedy)


def _compared(config: Config, data: Data) -> Iterator[tuple[str, Any]]:
    yield _DATA, data.fingerprint
    sections = recorded_sections(config)  # a secret may be renewed, and is in no log
    for name in sections:
        keys = sections[name] if name in _SECTIONS else _KEYS.get(name, ())
        yield from ((f"{name}.{key}", sections[name][key]) for key in keys)


def _digest(value: Any) -> Any:
    text = json.dumps(value, sort_keys=True).encode()
    return np.frombuffer(hashlib.blake2b(text, digest_size=2 * _PARTS).digest(), np.uint16)
