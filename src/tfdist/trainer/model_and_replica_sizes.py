"""Define the sizes of a model, its data and its replicas that determine what training needs, in bytes."""

from dataclasses import dataclass, replace

from tfdist.cluster.config import ClusterConfig
from tfdist.launcher.share_cores_and_gpus import own_gpus
from tfdist.strategies.strategy_names import StrategyName, strategy_name
from tfdist.trainer.config import Config


@dataclass(frozen=True)
class VariableSizes:
    """One variable, and what belongs to it.

    Attributes:
        name: The name, for messages.
        shape: The shape.
        value: The bytes of its value; those of its gradient are the same.
        slots: The bytes of the optimizer's variables beside it.
        is_trained: Whether it has a gradient.
        rows_per_example: How many of its rows an example reads; 0 if a step reads the whole variable.
    """

    name: str
    shape: tuple[int, ...]
    value: int
    slots: int = 0
    is_trained: bool = True
    rows_per_example: int = 0

    def rows_read(self, examples: int) -> int:
        """Return how many rows a step on so many examples reads, of a variable that is read by rows."""
        return min(self.shape[0], self.rows_per_example * examples)

    def bytes_read(self, examples: int) -> int:
        """Return the bytes that a step on so many examples reads, and those of its gradient."""
        if not self.rows_per_example:
            return self.value
        return self.rows_read(examples) * (self.value // self.shape[0])

    def shards(self, count: int) -> list["VariableSizes"]:
        """Return so many shards along the first axis."""
        rows, more = divmod(self.shape[0], count)
        return [self._part(rows + (index < more)) for index in range(count)]

    def _part(self, rows: int) -> "VariableSizes":
        share = rows / self.shape[0]
        return replace(
            self,
            shape=(rows, *self.shape[1:]),
            value=round(self.value * share),
            slots=round(self.slots * share),
            rows_per_example=-(-self.rows_per_example * rows // self.shape[0]),
        )


@dataclass(frozen=True)
class ModelSizes:
    """A compiled model, its data, and a process that has loaded TensorFlow.

    Attributes:
        variables: The variables, in the order in which they are made.
        kept: The bytes that the forward pass of one replica's part of a batch keeps for the backward pass.
        largest: The bytes of the largest output that a layer has for that part of the batch.
        example: The bytes of an example as the input pipeline makes it.
        train_data: The bytes of the prepared training data.
        test_data: The bytes of the prepared test data.
        private: The bytes that a process with TensorFlow has for itself.
        libraries: The bytes of TensorFlow's libraries and other files, which the tasks of a machine share.
    """

    variables: tuple[VariableSizes, ...]
    kept: int
    largest: int
    example: int
    train_data: int
    test_data: int
    private: int
    libraries: int


@dataclass(frozen=True)
class Replicas:
    """How a config's batch is divided.

    Attributes:
        strategy: The strategy; for auto, the one that fits the cluster and the devices.
        devices: How many devices a process of this machine computes on.
        examples: How many examples one replica computes in a step.
    """

    strategy: StrategyName
    devices: int
    examples: int

    @property
    def per_process(self) -> int:
        """Return how many replicas one process has."""
        return 1 if self.strategy in ("one_device", "parameter_server") else self.devices

    @classmethod
    def of(cls, config: Config, cluster: ClusterConfig, devices: int | None = None) -> "Replicas":
        """Return the replicas of a config on a cluster, with this machine's devices if no number is given."""
        if devices is None:
            gpus = 0 if config.strategy.device == "cpu" else len(own_gpus())
            here = max(1, len(cluster.computing_tasks())) if cluster.is_on_ports_of_ours else 1
            devices = max(1, gpus // here) if gpus else config.strategy.logical_devices or 1
        strategy = strategy_name(config.strategy.name, cluster, devices=devices)
        count = {
            "one_device": 1,
            "mirrored": devices,
            "multi_worker_mirrored": devices * (cluster.size("chief") + cluster.size("worker")),
            "parameter_server": 1,
            "parameter_server_sync": devices * cluster.size("worker"),
        }[strategy]
        return cls(strategy, devices, -(-config.data.batch_size // max(1, count)))
