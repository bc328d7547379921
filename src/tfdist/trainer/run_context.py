"""Group what the parts of a run share: config, cluster, strategy, data, folder, and notices to end."""

from dataclasses import dataclass

import tensorflow as tf

from tfdist._utils.strategy_kinds import is_asynchronous
from tfdist.cluster.config import ClusterConfig
from tfdist.coordination.end_announcements import ServerTermination
from tfdist.coordination.stop_signals import Notice
from tfdist.datasets.open_data import Data
from tfdist.trainer.config import Config
from tfdist.trainer.elastic import Elastic
from tfdist.trainer.remote_run_folder import RemoteRunFolder
from tfdist.trainer.run_folder import RunFolder


@dataclass(frozen=True)
class RunContext:
    """The objects that one task of a run uses after it has connected to the others.

    Attributes:
        config: The config of the run.
        cluster: The cluster that trains, and this process's task.
        strategy: The strategy that connects it.
        data: The data set.
        folder: The run's folders.
        notice: Whether this task was told to end.
        server_termination: Whether a server was told to end.
        elastic: The tasks that take part, if they may change.
        remote: The folders that are in an object store, for the chief, which writes them.
    """

    config: Config
    cluster: ClusterConfig
    strategy: tf.distribute.Strategy
    data: Data
    folder: RunFolder
    notice: Notice
    server_termination: ServerTermination
    elastic: Elastic | None = None
    remote: RemoteRunFolder | None = None

    @property
    def is_chief(self) -> bool:
        """Return whether this task writes the files of the run."""
        return self.cluster.is_chief

    @property
    def is_asynchronous(self) -> bool:
        """Return whether each worker trains at its own pace."""
        return is_asynchronous(self.strategy)
