"""Make the schedule of the learning rate that a config describes."""

from typing import Any

import tensorflow as tf

__all__ = ["Rising", "make_learning_rate"]


def make_learning_rate(value: float, *, schedule: str, warmup: float, steps: int) -> Any:
    """Return the learning rate as a number, or as a schedule over the steps of a run."""
    rate: Any = value
    rising = round(warmup * steps)
    if schedule == "cosine":
        rate = tf.keras.optimizers.schedules.CosineDecay(value, max(1, steps - rising))
    return Rising(value, rising, rate) if rising else rate


class Rising(tf.keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
    """A schedule in which the learning rate rises over some steps, and then follows another schedule.

    Keras's own CosineDecay has a warm-up only since version 2.13.
    """

    def __init__(self, value: float, steps: int, then: Any) -> None:
        super().__init__()
        self.value, self.steps, self.then = value, steps, then

    def __call__(self, step: Any) -> tf.Tensor:
        """Return the learning rate at a step."""
        step = tf.cast(step, tf.float32)
        later = tf.maximum(step - self.steps, 0.0)
        then = self.then(later) if callable(self.then) else tf.constant(self.then)
        # The first step has a rate above 0: a rate of 0 would waste it.
        return tf.where(step < self.steps, self.value * (step + 1) / (self.steps + 1), then)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that make this schedule again."""
        return {"value": self.value, "steps": self.steps, "then": self.then}
