"""Name the steps of a training loop in what TensorFlow's profiler records."""

from collections.abc import Generator
from typing import TypeVar

import tensorflow as tf

from tfdist._utils.profiler_span import STEP
from tfdist.training.multi_step import Totals

__all__ = ["name_steps"]

_Totals = TypeVar("_Totals", bound=Totals)


def name_steps(
    executions: Generator[tuple[int, _Totals], None, None], done: int
) -> Generator[tuple[int, _Totals], None, None]:
    """Yield the executions of a runner; the profiler records each with the number of its first step.

    Args:
        executions: The executions.
        done: How many steps are done.
    """
    try:
        while True:
            with tf.profiler.experimental.Trace(STEP, step_num=done + 1, _r=1) as recorded:
                execution = next(executions, None)
                recorded.set_metadata(steps=0 if execution is None else execution[0])
            if execution is None:
                return
            done += execution[0]
            yield execution
    finally:
        executions.close()
