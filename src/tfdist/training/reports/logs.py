"""Convert metrics' results to logs, as Keras does, and logs to a line of text."""

from collections.abc import Mapping
from typing import Any

import numpy as np


def as_logs(results: Mapping[str, Any], *, are_sorted: bool = True) -> dict[str, Any]:
    """Return results, nested dicts included, as Python numbers, or arrays if they have several elements.

    Keras 3 sorts them by their names; Keras 2 leaves them in the order of the metrics.
    """
    logs: dict[str, Any] = {}
    for name, value in sorted(results.items()) if are_sorted else results.items():
        if isinstance(value, Mapping):
            logs.update(as_logs(value, are_sorted=are_sorted))
        else:
            array = np.asarray(value)
            logs[name] = float(array) if array.ndim == 0 else array
    return logs


def as_scalars(results: Mapping[str, Any]) -> dict[str, float]:
    """Return results as Python numbers; a vector `f1_score` becomes `f1_score/0`, `f1_score/1` and so on."""
    scalars: dict[str, float] = {}
    for name, value in as_logs(results).items():
        if np.ndim(value) == 0:
            scalars[name] = float(value)
        else:
            scalars.update({f"{name}/{index}": float(part) for index, part in enumerate(np.ravel(value))})
    return scalars


def as_text(logs: Mapping[str, Any]) -> str:
    """Return logs as a line of text, the loss first."""
    names = sorted(logs, key=lambda name: (name != "loss", name))
    return ", ".join(
        f"{name} {np.array2string(np.asarray(logs[name]), precision=4, floatmode='fixed')}" for name in names
    )
