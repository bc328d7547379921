"""Train on the cluster that a config file describes, and leave a SavedModel that the chief has written.

    python -m tfdist.train --config configs/ps2w.yaml --set train.epochs=3

If the file counts tasks, they are started on this machine. If it gives addresses, this process is one of
them: --task says which, or a scheduler's variables do. Without a cluster it trains in this process.
"""

import contextlib
import json
import logging
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from tfdist._utils.check_and_expand_paths import absolute_path
from tfdist._utils.new_run_folder import claimed_run_folder, stamped_run_folder
from tfdist._utils.read_yaml_and_json import check_not_stream
from tfdist._utils.readable_text import duration, short_path
from tfdist.cli._check_values import check_utf_8
from tfdist.cli._end_of_run import page_written, print_results
from tfdist.cli._flags_from_signature import Changes, Flag, LogFormat, NeededConfig, Verbosity, run
from tfdist.cli._load_tensorflow_quietly import load_tensorflow_quietly
from tfdist.cli._plan_text import plan_text
from tfdist.cli._prepare_data import prepare_data
from tfdist.cluster.config import ClusterConfig
from tfdist.diagnostics.report.page import PAGE, write_page
from tfdist.errors import LOST, ConfigError, TaskLost, TfdistError
from tfdist.launcher.console import ScreenOptions
from tfdist.launcher.environment import ENGINE, GRACE, LAUNCH, thread_variables
from tfdist.launcher.progress_without_launcher import showing_progress
from tfdist.launcher.prometheus_metrics import serving_metrics
from tfdist.launcher.record_events import is_launched
from tfdist.launcher.send_reports import VARIABLE as PROGRESS
from tfdist.profiling.parse_step_range import parse_steps
from tfdist.strategies.strategy_names import roles_started_alone, strategy_name
from tfdist.trainer.config import Settings, config_text, read_config
from tfdist.trainer.failure_for_sagemaker import failure_written
from tfdist.trainer.run_folder import RunFolder, find_run_folder
from tfdist.trainer.sections.starting_and_watching_tasks import LaunchSection

_log = logging.getLogger("tfdist")
# A run of seconds with two evaluations, two checkpoints and the export.
_SMOKE = (
    "train.steps=4",
    "train.steps_per_execution=2",
    "evaluation.every=2",
    "evaluation.batches=2",
    "checkpoint.every=2",
    "summaries.every=2",
)


def main(
    config: NeededConfig,
    set: Changes = (),
    run_dir: Annotated[
        str | None, Flag("The folder for the run's files. Without it, a new folder in runs/.")
    ] = None,
    task: Annotated[str | None, Flag("Which task of the cluster this process is, e.g. worker:0.")] = None,
    dry_run: Annotated[bool, Flag("Check everything, show what would be done, and train nothing.")] = False,
    smoke: Annotated[bool, Flag("Take a few steps only: training, evaluation, checkpoint, export.")] = False,
    profile: Annotated[
        str | None, Flag("Record these steps of all tasks in one timeline, e.g. 20:30.")
    ] = None,
    log_format: LogFormat = "text",
    verbosity: Verbosity = 0,
) -> None:
    """Train, as the whole cluster or as one task of it."""
    with failure_written(os.environ):
        screen = ScreenOptions(json=log_format == "json", verbosity=verbosity)
        if profile is not None:
            parse_steps(profile, "--profile")
            set = [*set, f"train.profile={profile}"]
        _main(config, set, run_dir, task, dry_run, smoke, screen)


def _main(
    config: str,
    set: Sequence[str],
    run_dir: str | None,
    task: str | None,
    dry_run: bool,
    smoke: bool,
    screen: ScreenOptions,
) -> None:
    changes = [*set, *(_SMOKE if smoke else ())]
    settings = read_config(config, changes)
    cluster = settings.find_cluster(task=task)
    if not dry_run and (cluster.is_on_ports_of_ours or settings.config.elastic):
        check_not_stream(config)  # the tasks, or this one after a change of the cluster, read it again
    settings.check_elastic(cluster)
    settings.check_evaluator()
    with _run_folder(config, set, run_dir, cluster, dry_run=dry_run, smoke=smoke) as folder:
        check_utf_8("run folder", str(folder.root))
        if dry_run:
            _check(settings, cluster, folder)
        elif cluster.is_on_ports_of_ours:
            _launch(cluster, settings, changes, folder, screen)
        elif cluster and cluster.task is None:
            raise _which_task(cluster, settings)
        else:
            _train(settings, cluster, folder, screen)


@contextlib.contextmanager
def _run_folder(
    config: str,
    changes: Sequence[str],
    run_dir: str | None,
    cluster: ClusterConfig,
    *,
    dry_run: bool,
    smoke: bool,
) -> Iterator[RunFolder]:
    """Yield the folder of the run; if it is a new one, print how to continue the run when it is stopped."""
    # All tasks of a run share its folder, so without a launcher its name must not contain the time.
    is_whole = cluster.is_on_ports_of_ours or not cluster
    name = f"{Path(config).stem}{'-smoke' if smoke else ''}"
    default = stamped_run_folder(name) if is_whole else Path("runs", name)
    folder = find_run_folder(run_dir, default, os.environ)
    is_new = is_whole and not dry_run and run_dir is None
    if not is_new or folder.root != absolute_path(default, "run folder"):
        yield folder
        return
    with claimed_run_folder(name) as claimed:
        folder = find_run_folder(run_dir, claimed, os.environ)
        with _command_to_continue_shown(config, changes, smoke=smoke, folder=folder):
            yield folder


@contextlib.contextmanager
def _command_to_continue_shown(
    config: str, changes: Sequence[str], *, smoke: bool, folder: RunFolder
) -> Iterator[None]:
    """Print the command that continues a stopped run in the folder that was chosen for it."""
    try:
        yield
    except (TfdistError, KeyboardInterrupt) as error:
        if isinstance(error, KeyboardInterrupt) or error.exit_code == LOST:
            words = ["tfdist", "train", "--config", config, *(f"--set={change}" for change in changes)]
            words += ["--smoke"] if smoke else []
            command = shlex.join([*words, "--run_dir", short_path(folder.place)])
            with contextlib.suppress(OSError):  # somebody has closed the terminal
                print(f"tfdist: to continue this run: {command}", file=sys.stderr)
        raise


def _check(settings: Settings, cluster: ClusterConfig, folder: RunFolder) -> None:
    """Check the config without training, and print what a run would do."""
    load_tensorflow_quietly()
    from tfdist.trainer.check_without_training import check_without_training

    print(f"# What {settings.path} says, defaults included:\n\n{config_text(settings.config)}")
    print(f"{plan_text(cluster, cluster.tasks(), settings)}\n")
    for line in check_without_training(settings.config, cluster, folder):
        print(line)


def _launch(
    cluster: ClusterConfig,
    settings: Settings,
    changes: Sequence[str],
    folder: RunFolder,
    screen: ScreenOptions,
) -> None:
    """Start every task as a process on this machine."""
    from tfdist.launcher.launch_tasks import SECONDS_FOR_THE_EVALUATOR, launch

    if settings.config.elastic is not None:
        problem = (
            "is for tasks on several machines: here a lost one is started again, as launch.restarts says"
        )
        raise ConfigError(f"{settings.path}: elastic", problem, remedy="Leave it out")
    section = settings.config.launch
    isolation = settings.network_isolation(is_run_elsewhere=bool(folder.copies))
    if folder.copies:
        _check_address(folder)
    prepare_data(settings)
    name = strategy_name(settings.config.strategy.name, cluster)
    metrics = settings.config.metrics
    with (
        page_written(folder.root, lambda: _write_page(folder)),
        serving_metrics(metrics.prometheus_port, metrics.prometheus_address) as served,
    ):
        launch(
            cluster,
            _command_of_tasks(settings, changes, folder),
            run_dir=folder.root,
            threads=section.threads,
            pin=section.pin,
            network_isolation=isolation,
            linger=SECONDS_FOR_THE_EVALUATOR if cluster.evaluator else None,
            restarts=section.restarts,
            grace=section.grace,
            alone=roles_started_alone(name),
            heartbeat_timeout=settings.config.watch.silence_limit,
            loads_once=True,
            screen=screen,
            metrics=served,
        )
    if not screen.json:
        _print_report(folder)


def _check_address(folder: RunFolder) -> None:
    load_tensorflow_quietly()
    from tfdist.trainer.remote_run_folder import check_address  # loads TensorFlow, whose file systems it uses

    check_address(folder)


def _command_of_tasks(settings: Settings, changes: Sequence[str], folder: RunFolder) -> list[str]:
    words = [sys.executable, "-m", "tfdist.train", "--config", settings.path]
    if folder.is_one_folder:  # otherwise the tasks find the same folders in their environment
        words += ["--run_dir", folder.place]
    return [*words, *(f"--set={change}" for change in changes)]


def _train(settings: Settings, cluster: ClusterConfig, folder: RunFolder, screen: ScreenOptions) -> None:
    """Train as one task, in this process."""
    if LAUNCH not in os.environ:
        _apply_without_launcher(settings.config.launch, is_chief=cluster.is_chief)
    if not is_launched():  # under a launcher, the log files keep TensorFlow's notes
        load_tensorflow_quietly()
    from tfdist.trainer.run_task import train  # loads TensorFlow, which the launcher does not need

    # Under a launcher, the launcher writes the page, after the last event.
    writes = cluster.is_chief and not cluster.is_evaluator and not is_launched()
    shows = writes and PROGRESS not in os.environ  # otherwise a launcher on another machine does
    with (
        page_written(folder.root, lambda: _write_page(folder)) if writes else contextlib.nullcontext(),
        showing_progress(json=screen.json, place=short_path(folder.place))
        if shows
        else contextlib.nullcontext(),
    ):
        report = train(settings.config, cluster, folder)
    if report is not None and shows and not screen.json:
        _print_report(folder)


def _apply_without_launcher(section: LaunchSection, *, is_chief: bool) -> None:
    """Set the threads of this process, as a launcher does for its tasks; log which other keys do nothing."""
    if ENGINE not in os.environ:  # its own variables come before those of the config
        os.environ.update(thread_variables(section.threads))
    names = ["pin", "restarts", "network_isolation", *([] if GRACE in os.environ else ["grace"])]
    ignored = [f"launch.{name}" for name in names if getattr(section, name) != getattr(LaunchSection(), name)]
    if ignored and is_chief:
        verb = "has" if len(ignored) == 1 else "have"
        _log.info("%s %s no effect here: no launcher has started this process", ", ".join(ignored), verb)


def _write_page(folder: RunFolder) -> None:
    if folder.address_of(folder.root) is None:
        write_page([folder.root])
        return
    # This loads TensorFlow, whose file systems it uses.
    from tfdist.trainer.remote_run_folder import put_events, put_file

    try:
        put_events(folder, is_over=True)
    finally:
        page = write_page([folder.root], places=[folder.place])
    put_file(folder, page)


def _print_report(folder: RunFolder) -> None:
    """Print the results of the run, the places of its files, and the commands that come next."""
    path = folder.report_file
    try:
        report = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise TaskLost(str(path), "was removed during the run", remedy="Start the run again") from None
    page = folder.root / PAGE
    place = shlex.quote(short_path(folder.place))
    accuracy = report["test_accuracy"]
    shown_accuracy = "NaN or infinite" if accuracy is None else f"{accuracy:.4f}"
    rows = [
        ("test accuracy", f"{shown_accuracy}   ({report['steps']:,} steps on {report['data']})"),
        ("time", duration(report["seconds"])),
        ("SavedModel", short_path(report["export"])),
        ("report", short_path(folder.shown(page if page.exists() else path))),
        ("curves", f"tensorboard --logdir {place}"),
        ("predictions", f"tfdist predict --model {place} --input IMAGES"),
    ]
    instead = report["substitute_for"]
    print_results(rows, f"ATTENTION: '{report['data']}' was used in place of '{instead}'" if instead else "")


def _which_task(cluster: ClusterConfig, settings: Settings) -> ConfigError:
    commands = "; ".join(f"on {cluster.address(task)}: {settings.command(task)}" for task in cluster.tasks())
    problem = "gives addresses, but not which of them this process is"
    return ConfigError(cluster.source.at(), problem, remedy=f"Type {commands}")


if __name__ == "__main__":
    run(main, loads="tfdist.trainer.run_task")
