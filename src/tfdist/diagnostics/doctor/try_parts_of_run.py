"""Try the parts of a run in this process alone: strategy, data, model, and on request the speed of a step.

    python -m tfdist.diagnostics.doctor.try_parts_of_run PLAN

PLAN is the JSON text of a `Plan`. Each part adds its record to the plan's output as soon as it was tried:
this process may crash at the next one, or be too late for it.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec.structs import replace

from tfdist._utils.write_files import temporary_folder
from tfdist.benchmark.measure_task import measure
from tfdist.benchmark.task_measurements import Record
from tfdist.cluster.config import ClusterConfig
from tfdist.datasets.open_data import Data, open_data
from tfdist.diagnostics.doctor.parts_of_run_records import Part, Plan
from tfdist.errors import TfdistError
from tfdist.trainer.check_without_training import check_options, checked_model, described
from tfdist.trainer.config import Config, read_config
from tfdist.trainer.measure_model_of_config import memory_of_this_process, sizes_of
from tfdist.trainer.model_and_replica_sizes import Replicas
from tfdist.trainer.run_folder import find_run_folder
from tfdist.trainer.sections.strategy import StrategySection
from tfdist.trainer.step_counts import steps_per_epoch, total_steps

_STEPS, _WARM_UP = 20, 5


def try_parts(plan: Plan) -> None:
    """Try one part after the other, up to the first that has a problem."""
    settings = read_config(plan.config, plan.changes)
    config, cluster = settings.config, settings.find_cluster(task=plan.task)
    opened: list[Data] = []
    memory = memory_of_this_process()

    def data() -> Part:
        opened.append(open_data(**config.data.wanted()))
        return _data(opened[0])

    tries: dict[str, Callable[[], Part]] = {
        "strategy": lambda: _strategy(config, cluster, plan.run_dir),
        "data": data,
        "model": lambda: _model(config, cluster, opened[0], memory),
    }
    if plan.measures_speed:
        tries["speed"] = lambda: _speed(config, cluster)
    for name, attempt in tries.items():
        part = _tried(name, attempt)
        with Path(plan.output).open("ab") as output:
            output.write(msgspec.json.encode(part) + b"\n")
        if part.problem:
            return


def _tried(name: str, attempt: Callable[[], Part]) -> Part:
    """Return what a part is, or the problem that it has."""
    try:
        return attempt()
    except TfdistError as error:
        return Part(name=name, problem=f"{error.where}: {error.problem}", remedy=error.remedy)
    except Exception as error:  # noqa: BLE001  # the user's own model may raise anything
        return Part(name=name, problem=f"{type(error).__name__}: {error}")


def _strategy(config: Config, cluster: ClusterConfig, run_dir: str | None) -> Part:
    folder = find_run_folder(run_dir, Path("runs"), os.environ)
    return Part(name="strategy", found=check_options(config, cluster, folder))


def _data(data: Data) -> Part:
    folder = str(data.folder)
    return Part(name="data", found=described(data), fingerprint=data.fingerprint, folder=folder)


def _model(config: Config, cluster: ClusterConfig, data: Data, memory: tuple[int, int]) -> Part:
    model = checked_model(config, data)
    steps = f"{total_steps(config, data):,} steps, of which {steps_per_epoch(config, data):,} are an epoch"
    return Part(
        name="model",
        found=f"{config.model.name} builds and compiles: {model.count_params():,} parameters; {steps}",
        sizes=sizes_of(model, data, config, Replicas.of(config, cluster).examples, memory),
    )


def _speed(config: Config, cluster: ClusterConfig) -> Part:
    """Train some steps of one worker's share of the batch, on real data and without any exchange."""
    workers = max(1, len(cluster.computing_tasks()))
    shares = not cluster.ps or config.strategy.name == "parameter_server_sync"
    batch = max(1, config.data.batch_size // (workers if shares else 1))
    section = config.strategy
    alone = replace(
        config,
        data=replace(config.data, batch_size=batch),
        strategy=StrategySection(name="one_device", device=section.device, precision=section.precision),
        communication=type(config.communication)(),
        elastic=None,
    )
    with temporary_folder("tfdist-doctor-") as folder:
        measure(alone, ClusterConfig(), Path(folder), steps=_STEPS, warmup=_WARM_UP)
        [written] = Path(folder).glob("*.json")
        record = msgspec.json.decode(written.read_bytes(), type=Record)
    speed = record.examples_per_second
    found = f"{speed:.0f} examples/s in batches of {batch}, by one process alone ({_STEPS} steps)"
    return Part(name="speed", found=found, examples_per_second=speed, batch_size=batch)


if __name__ == "__main__":
    try_parts(msgspec.json.decode(sys.argv[1], type=Plan))
