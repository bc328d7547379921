"""Estimate what memory each task of a config needs, and what it sends in a step; units are bytes.

The sizes of the model come from `tfdist.trainer.measure_model_of_config`, which loads TensorFlow; this module
does not. docs/estimate.md compares the estimates with real runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from tfdist.cluster.addresses_and_free_ports import split_address
from tfdist.cluster.config import ClusterConfig, Task
from tfdist.trainer.config import Config
from tfdist.trainer.model_and_replica_sizes import ModelSizes, Replicas, VariableSizes

# Measured with TensorFlow 2.21 on CPUs: what a task has besides the parts that follow from the model, such as
# traced and optimized graphs, executors, connections, and buffers of the input pipeline.
_ALONE, _CHIEF, _SERVER = 180_000_000, 140_000_000, 80_000_000
_WORKER, _WORKER_ALONE = 80_000_000, 230_000_000  # in step; and one that reads its own data
_BYTES_PER_NUMBER = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "int8": 1.0 + 4 / 256}
_BYTES_OF_INDEX = 8
_IMAGES_OF_CHECK = 500  # that the chief classifies at once, when it checks the model to be exported
_IN_SHARED_MEMORY = 4  # messages for each pair of a worker and a server: two in each direction


@dataclass(frozen=True)
class TaskEstimate:
    """The needs of a task.

    Attributes:
        task: The task's name; `process` without a cluster.
        memory: The bytes of each part of its own memory, by name.
        data: The bytes of prepared data that it maps; the tasks of a machine share them.
        sent: The bytes that it sends in a step.
    """

    task: str
    memory: dict[str, int] = field(default_factory=dict)
    data: int = 0
    sent: int = 0

    @property
    def total(self) -> int:
        """Return the bytes of its own memory."""
        return sum(self.memory.values())


def milliseconds(sent: int, gigabits: float) -> float:
    """Return how long a link of so many Gbit/s takes for the bytes."""
    return sent * 8 / (gigabits * 1e9) * 1e3


def estimate_tasks(
    config: Config, cluster: ClusterConfig, sizes: ModelSizes, replicas: Replicas
) -> list[TaskEstimate]:
    """Return the estimate for each task, or for one process, by the sizes of the model on one replica."""
    step = _Step(config, cluster, sizes, replicas)
    if not cluster:
        return [step.process("process")]
    return [step.task(task) for task in cluster.tasks()]


def one_of_each(estimates: Sequence[TaskEstimate]) -> list[TaskEstimate]:
    """Return one estimate for neighbours that are equal, with the names of the first and the last task."""
    found = []
    for (_, equal), group in groupby(estimates, lambda task: (_role(task), replace(task, task=""))):
        names = [task.task for task in group]
        last = names[-1].partition(":")[2]
        found.append(replace(equal, task=names[0] if len(names) == 1 else f"{names[0]}…{last}"))
    return found


def _role(estimate: TaskEstimate) -> str:
    return estimate.task.partition(":")[0]


class _Step:
    """A step of one strategy, seen from each of its tasks."""

    def __init__(self, config: Config, cluster: ClusterConfig, sizes: ModelSizes, replicas: Replicas) -> None:
        self._cluster, self._sizes, self._config = cluster, sizes, config
        self._examples = replicas.examples
        self._devices = replicas.per_process
        self._workers = max(1, cluster.size("worker"))
        self._is_in_step = replicas.strategy == "parameter_server_sync"
        self._dtype = config.communication.dtype or "float32"

    def task(self, task: Task) -> TaskEstimate:
        """Return the estimate for a task of a cluster."""
        if task.type == "evaluator":
            variables = self._held(self._sizes.variables)[0]
            memory = self._memory(_CHIEF, variables=variables, activations=self._checking())
            return TaskEstimate(str(task), memory, self._sizes.test_data)
        if not self._cluster.ps:
            return self.process(str(task))
        if task.type == "ps":
            return self._server(task.index)
        return self._worker(str(task)) if task.type == "worker" else self._chief()

    def process(self, name: str) -> TaskEstimate:
        """Return the estimate for a process that holds all variables: alone, or a mirrored worker."""
        variables, slots = self._held(self._sizes.variables)
        memory = self._memory(
            _ALONE,
            variables=self._devices * variables,
            optimizer=self._devices * slots,
            gradients=self._devices * self._gradients(),
            activations=self._devices * self._activations(),
        )
        members = len(self._cluster.training().tasks())
        return TaskEstimate(name, memory, self._data(), self._sent_by_ring(members))

    def _worker(self, name: str) -> TaskEstimate:
        """Return the estimate for a worker beside parameter servers, which fetches what it needs."""
        fetched, gradients = self._read(), self._gradients()
        memory = self._memory(
            _WORKER if self._is_in_step else _WORKER_ALONE,
            variables=fetched,
            gradients=gradients,
            activations=self._activations(),
            messages=fetched + gradients,
        )
        sent = sum(self._wire(variable, is_read=False) for variable in self._sizes.variables)
        sent /= 1 if self._is_in_step else self._workers
        return TaskEstimate(name, memory, 0 if self._is_in_step else self._data(), round(sent))

    def _server(self, index: int) -> TaskEstimate:
        """Return the estimate for a parameter server."""
        mine = self._placed()[index]
        variables, slots = self._held(mine)
        whole = self._workers * sum(part.value for part in mine if not part.rows_per_example)
        memory = self._memory(
            _SERVER,
            variables=variables,
            optimizer=slots,
            gradients=whole,
            messages=whole * (_IN_SHARED_MEMORY if self._shares_memory() else 1),
        )
        readers = self._workers if self._is_in_step else 1
        sent = readers * sum(self._wire(part, is_read=True) for part in mine)
        return TaskEstimate(f"ps:{index}", memory, 0, round(sent))

    def _chief(self) -> TaskEstimate:
        """Return the estimate for the chief of parameter servers, which computes only at the end."""
        variables = self._held(self._sizes.variables)[0]
        # Those of the model that is exported, and of the model that checks it.
        memory = self._memory(_CHIEF, variables=2 * variables, activations=self._checking())
        if not self._is_in_step:
            return TaskEstimate("chief:0", memory, self._sizes.test_data)
        # In step, the chief reads the data, and sends them to the workers; TensorFlow does so twice.
        sent = 2 * self._config.data.batch_size * self._sizes.example
        return TaskEstimate("chief:0", memory, self._data(), sent)

    def _memory(self, besides: int, **parts: int) -> dict[str, int]:
        return {"TensorFlow": self._sizes.private + besides, **parts}

    def _shares_memory(self) -> bool:
        """Return whether all tasks are on one machine, and may use its memory."""
        hosts = {split_address(self._cluster.address(task))[0] for task in self._cluster.tasks()}
        return len(hosts) == 1 and self._config.communication.is_auto

    def _held(self, variables: Sequence[VariableSizes]) -> tuple[int, int]:
        return sum(size.value for size in variables), sum(size.slots for size in variables)

    def _read(self) -> int:
        return sum(variable.bytes_read(self._examples) for variable in self._sizes.variables)

    def _gradients(self) -> int:
        return sum(size.bytes_read(self._examples) for size in self._sizes.variables if size.is_trained)

    def _activations(self) -> int:
        """Return the bytes that the backward pass needs of the forward pass, and those of two gradients."""
        return self._sizes.kept + 2 * self._sizes.largest

    def _checking(self) -> int:
        per_example = 2 * self._sizes.largest / self._examples
        return round(per_example * _IMAGES_OF_CHECK)

    def _data(self) -> int:
        return self._sizes.train_data + self._sizes.test_data

    def _wire(self, variable: VariableSizes, *, is_read: bool) -> float:
        """Return the bytes of a variable, or of its gradient, on the way between a worker and a server."""
        if variable.rows_per_example:
            indices = _BYTES_OF_INDEX * variable.rows_read(self._examples)
            return variable.bytes_read(self._examples) + (0 if is_read else indices)
        if not variable.is_trained:
            return float(variable.value)
        return variable.value / 4 * _BYTES_PER_NUMBER[self._dtype]

    def _sent_by_ring(self, members: int) -> int:
        """Return the bytes that a member of a ring sends: 2 (n - 1) / n of the gradients."""
        if members < 2:
            return 0
        trained = [variable for variable in self._sizes.variables if variable.is_trained]
        dense = sum(self._wire(size, is_read=False) for size in trained if not size.rows_per_example)
        rows = sum(self._wire(size, is_read=False) for size in trained if size.rows_per_example)
        return round(2 * (members - 1) / members * dense + (members - 1) * rows)

    def _placed(self) -> list[list[VariableSizes]]:
        """Return the variables, or shards of them, of each parameter server."""
        servers = self._cluster.size("ps")
        placed: list[list[VariableSizes]] = [[] for _ in range(servers)]
        loads = [0] * servers
        for number, part in enumerate(part for size in self._sizes.variables for part in self._shards(size)):
            server = loads.index(min(loads)) if self._is_in_step else number % servers
            placed[server].append(part)
            loads[server] += part.value
        return placed

    def _shards(self, variable: VariableSizes) -> list[VariableSizes]:
        least, most = self._config.strategy.min_shard_bytes, self._config.strategy.max_shards
        if (least is None and most is None) or not variable.shape:
            return [variable]
        wanted = variable.value // (256 << 10 if least is None else least)
        count = min(wanted, self._cluster.size("ps") if most is None else most, variable.shape[0])
        return variable.shards(max(1, count))
