"""Train on the cluster that a config file describes, and leave a SavedModel that the chief has written.

    python -m tfdist.train --config configs/ps2w.yaml --set train.epochs=3

Where the file counts tasks, they are started on this machine. Where it gives addresses, this process is one
of them: --task says which, or a scheduler's variables do. Without a cluster it trains in this process.
"""

import json
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tfdist.cluster import ClusterConfig
from tfdist.config import Settings, read_config
from tfdist.errors import ConfigError

__all__ = ["main"]

# A little of everything, in seconds: two evaluations, two checkpoints, the export.
_SMOKE = (
    "train.steps=4",
    "train.steps_per_execution=2",
    "evaluation.every=2",
    "evaluation.batches=2",
    "checkpoint.every=2",
    "summaries.every=2",
)
_SECONDS_FOR_THE_EVALUATOR = 600.0  # when the chief has ended, its last checkpoint has yet to be evaluated


def main(
    config: str | None,
    set: Sequence[str] = (),
    run_dir: str | None = None,
    task: str | None = None,
    dry_run: bool = False,
    smoke: bool = False,
) -> None:
    """Train, as the whole cluster or as one task of it."""
    if not config:
        raise ConfigError("--config", "is missing", remedy="Name a file: --config configs/ps2w.yaml")
    changes = [*set, *(_SMOKE if smoke else ())]
    settings = read_config(config, changes)
    cluster = settings.find_cluster(task=task)
    settings.check_elastic(cluster)
    settings.check_evaluator()
    # All tasks of a run share its folder, so each must come to the same name: no clock without a launcher.
    is_whole = cluster.is_on_ports_of_ours or not cluster
    stamp = time.strftime("-%Y%m%d-%H%M%S") if is_whole else ""
    name = f"{Path(config).stem}{'-smoke' if smoke else ''}{stamp}"
    folder = Path(run_dir or f"runs/{name}").absolute()
    if dry_run:
        _check(settings, cluster, folder)
    elif cluster.is_on_ports_of_ours:
        _launch(cluster, settings, changes, folder)
    elif cluster and cluster.task is None:
        raise _which_task(cluster, settings)
    else:
        _train(settings, cluster, folder)


def _check(settings: Settings, cluster: ClusterConfig, folder: Path) -> None:
    """Check all that can be checked without training, and show what would be done."""
    from tfdist.render import config_text, plan_text
    from tfdist.trainer import rehearse

    print(f"# What {settings.path} says, defaults included:\n\n{config_text(settings.config)}")
    print(f"{plan_text(cluster, cluster.tasks(), settings)}\n")
    for line in rehearse(settings.config, cluster, folder):
        print(line)


def _launch(cluster: ClusterConfig, settings: Settings, changes: Sequence[str], folder: Path) -> None:
    """Start every task as a process of its own, on this machine."""
    from tfdist.data import open_data
    from tfdist.launcher import LaunchError, launch

    if settings.config.elastic is not None:
        problem = (
            "is for tasks on several machines: here a lost one is started again, as launch.restarts says"
        )
        raise ConfigError(f"{settings.path}: elastic", problem, remedy="Leave it out")
    # Before anything starts: in their private network the tasks cannot download.
    open_data(**settings.config.data.wanted())
    words = [sys.executable, "-m", "tfdist.train", "--config", settings.path, "--run_dir", str(folder)]
    words += [f"--set={change}" for change in changes]
    section = settings.config.launch
    name = settings.config.strategy.name
    is_asynchronous = bool(cluster.ps) and name in ("auto", "parameter_server")
    try:
        launch(
            cluster,
            words,
            run_dir=folder,
            threads=section.threads,
            pin=section.pin,
            isolate=section.isolate,
            linger=_SECONDS_FOR_THE_EVALUATOR if cluster.evaluator else None,
            restarts=section.restarts,
            alone=("worker", "evaluator") if is_asynchronous else ("evaluator",),
            silence=settings.config.watch.silence,
            loads_once=True,
        )
    except LaunchError as error:
        if error.may_pass:
            error.exit_code = 138  # all is saved: start the same command again
        raise
    _tell(folder)


def _train(settings: Settings, cluster: ClusterConfig, folder: Path) -> None:
    """Do one task's part in this process."""
    from tfdist.trainer import train  # TensorFlow is loaded here, and in no launcher

    is_alone = not cluster
    if train(settings.config, cluster, folder) is not None and is_alone:
        _tell(folder)


def _tell(folder: Path) -> None:
    """Say what came of the run, and where everything is."""
    from rich.console import Console

    report = json.loads((folder / "report.json").read_text())
    say = Console(highlight=False, markup=False, soft_wrap=True).print
    if report["substitute_for"]:
        text = f"ATTENTION: '{report['data']}' was taken in place of '{report['substitute_for']}'"
        say(text, style="bold yellow")
    say(
        f"test accuracy  {report['test_accuracy']:.4f}   ({report['steps']} steps on {report['data']})",
        style="bold",
    )
    say(f"SavedModel     {report['export']}")
    say(f"report         {folder / 'report.json'}")
    say(f"curves         tensorboard --logdir {shlex.quote(str(folder))}")


def _which_task(cluster: ClusterConfig, settings: Settings) -> ConfigError:
    commands = "; ".join(f"on {cluster.address(task)}: {settings.command(task)}" for task in cluster.tasks())
    problem = "gives addresses, but not which of them this process is"
    return ConfigError(cluster.source.at(), problem, remedy=f"Type {commands}")


if __name__ == "__main__":
    from absl import flags

    from tfdist._app import run

    flags.DEFINE_string("config", None, "The YAML file that says everything; see configs/.")
    flags.DEFINE_multi_string("set", [], "Set a value of the file, e.g. train.epochs=3; can be repeated.")
    flags.DEFINE_string("run_dir", None, "Where the run's files go. Without, a new folder in runs/.")
    flags.DEFINE_string("task", None, "Which task of the cluster this process is, e.g. worker:0.")
    flags.DEFINE_bool("dry_run", False, "Check everything, show what would be done, and train nothing.")
    flags.DEFINE_bool("smoke", False, "Take a few steps only: training, evaluation, checkpoint, export.")
    run(main, loads="tfdist.trainer")
