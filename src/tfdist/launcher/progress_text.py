"""Describe the progress of a training in one line, for the launcher's bar and for `tfdist status`."""

from collections.abc import Sequence

from tfdist.launcher.chief_reports import Progress

__all__ = ["describe_progress"]


def describe_progress(reports: Sequence[tuple[float, Progress]]) -> str:
    """Return the progress as text.

    >>> describe_progress([(0.0, Progress(100, 1000)), (10.0, Progress(200, 1000, 5321.7, 0.12345))])
    'step 200 of 1,000 (20 %), 5,322 examples/s, loss 0.1235, 1 min 20 s left'
    """
    (began, first), (now, last) = reports[0], reports[-1]
    of_all = f" of {last.steps:,} ({100 * last.step // last.steps} %)" if last.steps else ""
    parts = [f"step {last.step:,}{of_all}"]
    if last.examples_per_second is not None:
        rate = last.examples_per_second
        parts.append(f"{rate:,.0f} examples/s" if rate >= 10 else f"{rate:.2g} examples/s")
    if last.loss is not None:
        parts.append(f"loss {last.loss:.4g}")
    if last.steps and last.step > first.step and last.step < last.steps:
        left = (last.steps - last.step) * (now - began) / (last.step - first.step)
        parts.append(f"{_duration(left)} left")
    return ", ".join(parts)


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours:,} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
