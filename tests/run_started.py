"""The event of a run's start, as the tests of screens and reports make it."""

from tfdist.launcher.run_events import RunStarted

__all__ = ["run_started"]


def run_started(**others):
    """Return the event, of 100 steps on parameter servers unless `others` say something else."""
    fields = {
        "strategy": "parameter_server",
        "model": "mnist_cnn",
        "parameters": 3_274_634,
        "data": "digits",
        "substitute_for": None,
        "train_examples": 60_000,
        "test_examples": 10_000,
        "batch_size": 128,
        "step": 0,
        "steps": 100,
        "steps_lost": 0,
        "cluster": {"chief": 1, "worker": 2, "ps": 1},
        "versions": {},
    }
    return RunStarted(**{**fields, **others})
