"""Estimate the memory that each task of a config needs, and what it sends in a step; nothing is trained.

    tfdist estimate --config configs/ps2w.yaml
    tfdist estimate --config configs/mwms2w.yaml --set cluster.worker=8 --json
    tfdist estimate --config configs/mwms2w.yaml --set 'communication={implementation: tcp, dtype: int8}'

The model is built and traced on this machine, and the data are prepared. docs/estimate.md compares estimates
with real runs.
"""

import json as json_format
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

from tfdist._utils.terminal_size_and_tables import console_for_tables
from tfdist.cli._flags_from_signature import Changes, Flag, NeededConfig, run
from tfdist.cli._load_tensorflow_quietly import load_tensorflow_quietly
from tfdist.diagnostics.estimate_memory_and_traffic import (
    TaskEstimate,
    estimate_tasks,
    milliseconds,
    one_of_each,
)
from tfdist.strategies.options import StrategyOptions
from tfdist.strategies.strategy_names import StrategyName
from tfdist.trainer.config import read_config
from tfdist.trainer.model_and_replica_sizes import ModelSizes, Replicas

_SPEEDS = (1, 10)  # Gbit/s


def main(
    config: NeededConfig,
    set: Changes = (),
    json: Annotated[bool, Flag("Print JSON, in bytes.")] = False,
) -> None:
    """Print the estimate of a config."""
    settings = read_config(config, set)
    cluster = settings.find_cluster()
    replicas = Replicas.of(settings.config, cluster)
    options = {**settings.config.strategy_options(cluster), "strategy": None}
    StrategyOptions.of(**options).check(replicas.strategy)
    load_tensorflow_quietly()
    from tfdist.trainer.measure_model_of_config import (
        measure_model,  # loads TensorFlow, after all mistakes are found
    )

    sizes = measure_model(settings.config, replicas.examples)
    estimates = estimate_tasks(settings.config, cluster, sizes, replicas)
    if json:
        _print_json(replicas.strategy, sizes, estimates)
    else:
        _print_tables(replicas.strategy, sizes, estimates)


def _print_json(name: StrategyName, sizes: ModelSizes, estimates: Sequence[TaskEstimate]) -> None:
    tasks = {
        task.task: {
            **asdict(task),
            "total": task.total,
            "milliseconds": {f"{speed} Gbit/s": milliseconds(task.sent, speed) for speed in _SPEEDS},
        }
        for task in estimates
    }
    print(json_format.dumps({"strategy": name, "libraries": sizes.libraries, "tasks": tasks}, indent=2))


def _print_tables(name: StrategyName, sizes: ModelSizes, estimates: Sequence[TaskEstimate]) -> None:
    from rich.box import SIMPLE
    from rich.table import Table

    parameters = sum(variable.value for variable in sizes.variables)
    console = console_for_tables()
    console.print(f"{name}, {_megabytes(parameters)} of variables. Memory of each task, in MB:")
    estimates = one_of_each(estimates)
    parts = list(dict.fromkeys(part for task in estimates for part in task.memory))
    table = Table("", *(task.task for task in estimates), box=SIMPLE)
    for part in parts:
        table.add_row(part, *(_number(task.memory.get(part, 0)) for task in estimates))
    table.add_row("in all", *(_number(task.total) for task in estimates), style="bold")
    table.add_row("data, shared", *(_number(task.data) for task in estimates))
    console.print(table)
    console.print(f"TensorFlow's libraries take {_megabytes(sizes.libraries)} more on each machine.")
    console.print("\nWhat each task sends in a step:")
    times = Table("", "MB", *(f"ms at {speed} Gbit/s" for speed in _SPEEDS), box=SIMPLE)
    for task in estimates:
        row = (f"{milliseconds(task.sent, speed):,.1f}" for speed in _SPEEDS)
        times.add_row(task.task, f"{task.sent / 1e6:,.2f}", *row)
    console.print(times)


def _number(count: int) -> str:
    return f"{count / 1e6:,.0f}" if count else "-"


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"


if __name__ == "__main__":
    run(main)
