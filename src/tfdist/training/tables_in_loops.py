"""Find a worker's own copy of a lookup table inside loops and branches of its graph."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from tfdist._utils.set_attributes import attributes_set
from tfdist._utils.tf_private import DistributedTable
from tfdist.training.worker_index_in_graph import outermost_graph

__all__ = ["tables_in_loops"]

_PATCHING = threading.RLock()


@contextlib.contextmanager
def tables_in_loops() -> Iterator[None]:
    """Make lookup tables usable in loops and branches of the graph that is traced in this block.

    Under ParameterServerStrategy each worker has a copy of every table, and passes its copy to the graph with
    the call. TensorFlow does not pass it on to a loop or a branch, and the table has no value there.
    """
    original: Any = DistributedTable.resource_handle

    def resource_handle(table: Any) -> Any:
        with outermost_graph().as_default():
            return original.fget(table)

    with _PATCHING, attributes_set(DistributedTable, resource_handle=property(resource_handle)):
        yield
