"""Train Keras models on many machines with TensorFlow: parameter servers, mirrored workers, one command."""

from tfdist.cluster import ClusterConfig, Task

__version__ = "0.1.0.dev0"

__all__ = ["ClusterConfig", "Task"]
