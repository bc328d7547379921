"""Keep in checkpoints what int8 rounds off the gradients of mirrored workers: a run resumes to the same bits.

With `communication.dtype: int8`, each worker adds the rounding errors of a step to its gradients of the next
step. They differ from worker to worker. So the chief collects those of all workers before it writes a
checkpoint, and sends them to all when it has read one.
"""

import io
import logging
import zipfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist._utils.tf_private import cross_device_ops_of
from tfdist.coordination.stall_watch import EXCHANGE, doing
from tfdist.errors import StorageError
from tfdist.strategies.cross_device_ops import RingAllReduce
from tfdist.strategies.strategy_classes import ring_of
from tfdist.training.checkpoints.checkpoint_files import ROUNDING_ERRORS

_log = logging.getLogger("tfdist")

Errors = dict[str, np.ndarray[Any, Any]]  # by the name of the bucket


def collect_rounding_errors(strategy: tf.distribute.Strategy, *, is_chief: bool) -> dict[str, bytes]:
    """Return, on the chief, the file of a checkpoint that has them, by its name; all workers call this."""
    exchange = _exchange_that_keeps_them(strategy)
    if exchange is None:
        return {}
    with doing(EXCHANGE):
        of_all = exchange.gathered(_as_bytes(exchange.buckets.rounding_errors))
    if not is_chief:
        return {}
    return {
        ROUNDING_ERRORS: _as_bytes(
            {
                f"{rank}/{name}": error
                for rank, each in enumerate(of_all)
                for name, error in _read(each).items()
            }
        )
    }


def restore_rounding_errors(strategy: tf.distribute.Strategy, folder: Path | None, *, is_chief: bool) -> None:
    """Send each worker those that the chief reads in the folder of a checkpoint; all workers call this."""
    exchange = _exchange_that_keeps_them(strategy)
    if exchange is None:
        return
    read = _read_file(folder / ROUNDING_ERRORS) if is_chief and folder is not None else b""
    with doing(EXCHANGE):
        read = b"".join(exchange.gathered(read))
    of_ranks: defaultdict[str, Errors] = defaultdict(dict)
    for key, error in (_read(read) if read else {}).items():
        rank, _, name = key.partition("/")
        of_ranks[rank][name] = error
    if of_ranks and len(of_ranks) != exchange.ring.size:
        if is_chief:
            text = "the checkpoint has the rounding errors of %d workers, and they are %d now: left out"
            _log.warning(text, len(of_ranks), exchange.ring.size)
        of_ranks.clear()
    exchange.buckets.rounding_errors = of_ranks[str(exchange.ring.rank)]


def _exchange_that_keeps_them(strategy: tf.distribute.Strategy) -> RingAllReduce | None:
    if ring_of(strategy) is None:
        return None
    exchange = cross_device_ops_of(strategy)
    return exchange if isinstance(exchange, RingAllReduce) and exchange.keeps_rounding_errors else None


def _read_file(file: Path) -> bytes:
    try:
        data = file.read_bytes()
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
                raise ValueError("is compressed, which could be of any size")
        _read(data)
    except FileNotFoundError:  # a checkpoint of a run without compression
        return b""
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        remedy = "Remove this checkpoint, to resume from another"
        raise StorageError(str(file), f"cannot be read: {error}", remedy=remedy) from error
    return data


def _as_bytes(errors: Errors) -> bytes:
    written = io.BytesIO()
    np.savez(written, **errors)  # type: ignore[arg-type]
    return written.getvalue()


def _read(data: bytes) -> Errors:
    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}
