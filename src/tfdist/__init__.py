"""Train Keras models on many machines with TensorFlow: parameter servers, mirrored workers, one command.

Importing tfdist loads no TensorFlow, and no module of its own: they are loaded when first asked for.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfdist.cluster.config import ClusterConfig, Task
    from tfdist.coordination.cluster_traffic import Traffic
    from tfdist.launcher.notebook import notebook_launcher
    from tfdist.remote.connect_map_reduce import connect
    from tfdist.strategies.current_cluster_and_strategy import is_chief
    from tfdist.strategies.factory import make_strategy
    from tfdist.strategies.server import serve
    from tfdist.training.barrier import barrier
    from tfdist.training.checkpoints.checkpoint_callback import CheckpointAndResume
    from tfdist.training.evaluate import evaluate
    from tfdist.training.fit import fit
    from tfdist.training.keras.optimizers.lazy_adam import LazyAdam
    from tfdist.training.predict import predict
    from tfdist.training.save import save
    from tfdist.training.start import start

__version__ = "0.1.0"

__all__ = [
    "CheckpointAndResume",
    "ClusterConfig",
    "LazyAdam",
    "Task",
    "Traffic",
    "barrier",
    "connect",
    "evaluate",
    "fit",
    "is_chief",
    "make_strategy",
    "notebook_launcher",
    "predict",
    "save",
    "serve",
    "start",
]

_HOMES = {
    "CheckpointAndResume": "tfdist.training.checkpoints.checkpoint_callback",
    "ClusterConfig": "tfdist.cluster.config",
    "LazyAdam": "tfdist.training.keras.optimizers.lazy_adam",
    "Task": "tfdist.cluster.config",
    "Traffic": "tfdist.coordination.cluster_traffic",
    "barrier": "tfdist.training.barrier",
    "connect": "tfdist.remote.connect_map_reduce",
    "evaluate": "tfdist.training.evaluate",
    "fit": "tfdist.training.fit",
    "is_chief": "tfdist.strategies.current_cluster_and_strategy",
    "make_strategy": "tfdist.strategies.factory",
    "notebook_launcher": "tfdist.launcher.notebook",
    "predict": "tfdist.training.predict",
    "save": "tfdist.training.save",
    "serve": "tfdist.strategies.server",
    "start": "tfdist.training.start",
}


def __getattr__(name: str) -> Any:
    if sys.platform == "win32" and (name in _HOMES or name == "ray"):
        raise ImportError("tfdist: Windows is not supported. Install WSL 2, and run the script there")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name == "ray":  # not in __all__: `from tfdist import *` must not replace Ray's own name
        return importlib.import_module("tfdist.ray")
    raise AttributeError(f"module 'tfdist' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
