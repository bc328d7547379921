"""Prove that a cluster computes what one process computes: the same weights after each step.

    tfdist verify --config configs/mwms2w.yaml

One process trains some steps on whole batches, then the cluster of the config on its parts of the same ones.
All losses and weights must agree to 1e-10 in float64, to 1e-6 in float32, or to ten times what merely
reversing each batch changes in one process. The exit status is 1 where they do not. Dropout is switched off
for it.
"""

import logging
import os
import sys
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tfdist._utils.read_yaml_and_json import check_not_stream
from tfdist._utils.run_process import run_process
from tfdist._utils.terminal_size_and_tables import console_for_tables
from tfdist._utils.write_files import temporary_folder
from tfdist.cli._flags_from_signature import Changes, Flag, NeededConfig, run
from tfdist.cli._load_tensorflow_quietly import load_tensorflow_quietly
from tfdist.cluster.config import ClusterConfig
from tfdist.errors import ConfigError, TfdistError
from tfdist.launcher.outcome import LaunchError
from tfdist.launcher.share_cores_and_gpus import own_gpus
from tfdist.strategies.strategy_names import strategy_name
from tfdist.trainer.config import Settings, read_config

if TYPE_CHECKING:
    from rich.table import Table

    from tfdist.trainer.equivalence import Difference, Numbers

_log = logging.getLogger("tfdist")
_ALONE = ["--set=cluster={}", "--set=strategy={name: one_device}", "--set=communication={}"]
_SECONDS = 1800


def main(
    config: NeededConfig,
    set: Changes = (),
    steps: Annotated[int, Flag("How many steps to compare.", least=1)] = 10,
    numbers: Annotated[
        Literal["float64", "float32"], Flag("The number type of all computation.")
    ] = "float64",
    record: Annotated[str | None, Flag("Only train and write this record.", is_hidden=True)] = None,
    reverse: Annotated[
        bool, Flag("With --record: take each batch in reverse order.", is_hidden=True)
    ] = False,
) -> int:
    """Verify a config's cluster, or with `record` run as one of its processes."""
    check_not_stream(config)
    settings = read_config(config, set)
    cluster = settings.find_cluster()
    if record:
        from tfdist.trainer.equivalence import record as write_record

        write_record(settings.config, cluster, Path(record), steps=steps, numbers=numbers, reverse=reverse)
        return 0
    _check(settings, cluster)
    words = [sys.executable, "-m", "tfdist", "verify", "--config", config]
    words += [f"--steps={steps}", f"--numbers={numbers}", *(f"--set={change}" for change in set)]
    with temporary_folder("tfdist-verify-") as folder:
        return _compare(words, cluster, settings, numbers, Path(folder))


def _check(settings: Settings, cluster: ClusterConfig) -> None:
    where = settings.document.source.at("strategy", "name")
    if strategy_name(settings.config.strategy.name, cluster) == "parameter_server":
        problem = "updates asynchronously: no two runs of it are equal"
        raise ConfigError(where, problem, remedy="Verify with parameter_server_sync")
    if cluster and not cluster.is_on_ports_of_ours:
        problem = "gives addresses; verify starts its cluster on this machine"
        raise ConfigError(
            cluster.source.at(), problem, remedy="Write the number of tasks: cluster: {worker: 2}"
        )


def _compare(
    words: list[str], cluster: ClusterConfig, settings: Settings, numbers: "Numbers", folder: Path
) -> int:
    alone, together, reordered = (folder / f"{name}.npz" for name in ("alone", "together", "reordered"))
    _log.info("one process trains")
    _run([*words, *_ALONE, f"--record={alone}"])
    _log.info("one process trains on reversed batches")
    _run([*words, *_ALONE, f"--record={reordered}", "--reverse"])
    name = _strategy(settings, cluster)
    _log.info("%s trains", name)
    if cluster:
        from tfdist.launcher.launch_tasks import launch

        try:
            launch(
                cluster.training(),
                [*words, f"--record={together}"],
                run_dir=folder / "run",
                network_isolation=settings.network_isolation(),
                loads_once=True,
                stream=StringIO(),
            )
        except LaunchError as error:
            raise error.as_the_task_said() from error
    else:
        _run([*words, f"--record={together}"])

    load_tensorflow_quietly()
    from tfdist.trainer.equivalence import compare

    return _show(compare(alone, together, reordered, numbers), name)


def _strategy(settings: Settings, cluster: ClusterConfig) -> str:
    """Return the name of the strategy that trains; for auto, of the one that tfdist chooses here."""
    options = settings.config.strategy
    gpus = 0 if options.device == "cpu" else len(own_gpus())
    return strategy_name(options.name, cluster, devices=gpus or options.logical_devices or 1)


def _run(words: list[str]) -> None:
    environ = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    ended = run_process(words, seconds=_SECONDS, environ=environ)
    if ended.problem:
        problem = ended.problem.removeprefix("tfdist: ")
        error = TfdistError("verify", f"one process could not train: {problem}")
        error.exit_code = ended.status if ended.status > 0 else 128 - ended.status  # as a shell has it
        raise error


def _show(differences: Sequence["Difference"], name: str) -> int:
    console = console_for_tables()
    console.print(_table(differences))
    wrong = next((difference for difference in differences if not difference.is_allowed), None)
    if wrong is None:
        console.print(f"{name} computes what one process computes: {len(differences)} steps", style="bold")
        return 0
    console.print(
        f"{name} differs from one process from step {wrong.step} on, first in {wrong.where}", style="bold red"
    )
    return 1


def _table(differences: Sequence["Difference"]) -> "Table":
    from rich.box import SIMPLE
    from rich.table import Column, Table

    names = ("step", "loss alone", "loss of the cluster", "worst difference", "of", "allowed")
    columns = [Column(name, overflow="fold") for name in names]
    table = Table(*columns, box=SIMPLE, pad_edge=False, collapse_padding=True)
    for difference in differences:
        losses = f"{difference.loss:.10g}", f"{difference.other_loss:.10g}"
        rest = f"{difference.worst:.1e}", difference.where, f"{difference.allowed:.1e}"
        style = None if difference.is_allowed else "bold red"
        table.add_row(f"{difference.step}", *losses, *rest, style=style)
        for column, loss in zip(columns[1:], losses, strict=False):  # in one piece, on a narrow terminal too
            column.min_width = max(column.min_width or 0, len(loss))
    return table


if __name__ == "__main__":
    run(main, loads="tfdist.trainer.equivalence")
