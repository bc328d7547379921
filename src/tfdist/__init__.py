"""Train Keras models on many machines with TensorFlow: parameter servers, mirrored workers, one command.

Importing tfdist loads no TensorFlow: what needs it is loaded when it is first asked for.
"""

import importlib
from typing import TYPE_CHECKING, Any

from tfdist.cluster import ClusterConfig, Task

if TYPE_CHECKING:
    from tfdist.loop import evaluate, fit, predict
    from tfdist.remote import connect
    from tfdist.server import serve
    from tfdist.strategy import make_strategy
    from tfdist.traffic import Traffic

__version__ = "0.1.0.dev0"

__all__ = [
    "ClusterConfig",
    "Task",
    "Traffic",
    "connect",
    "evaluate",
    "fit",
    "make_strategy",
    "predict",
    "serve",
]

_HOMES = {
    "Traffic": "tfdist.traffic",
    "connect": "tfdist.remote",
    "evaluate": "tfdist.loop",
    "fit": "tfdist.loop",
    "make_strategy": "tfdist.strategy",
    "predict": "tfdist.loop",
    "serve": "tfdist.server",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'tfdist' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
