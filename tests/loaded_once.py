"""Load what most tasks and commands of the tests load, in the process that they are forked from."""

from tfdist.trainer import run_task
from tfdist.training import evaluate, fit, predict

__all__ = ["evaluate", "fit", "predict", "run_task"]
