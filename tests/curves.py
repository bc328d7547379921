"""Read the curves that a run has written for TensorBoard."""

from pathlib import Path

__all__ = ["curve"]


def curve(run: Path, name: str, tag: str) -> list[float]:
    """Return the values of one curve of a run."""
    import tensorflow as tf
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "summaries" / name))
    events.Reload()
    return [float(tf.make_ndarray(event.tensor_proto)) for event in events.Tensors(tag)]
