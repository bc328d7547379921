"""Train Keras models on many machines with TensorFlow: parameter servers, mirrored workers, one command."""

__version__ = "0.1.0.dev0"

from tfdist.cluster import ClusterConfig as ClusterConfig
from tfdist.cluster import Task as Task
