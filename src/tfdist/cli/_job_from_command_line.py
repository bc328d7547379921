"""Find the job that a command is about: from the flags of `tfdist submit`, or by its handle."""

import os
import re
import shlex
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NamedTuple

from tfdist._utils.check_and_expand_paths import absolute_path, local_path, path_or_address
from tfdist._utils.read_yaml_and_json import check_not_stream
from tfdist.cli._check_values import check_utf_8
from tfdist.cli._flags_from_signature import Changes, ConfigFile, Flag
from tfdist.cluster.config import ClusterConfig
from tfdist.cluster.roles_and_task_counts import DEFAULT_PORT
from tfdist.engines.find_engine import engine_names, find_engine
from tfdist.engines.job_description import CONFIG, RUN_DIR, Job, train_command
from tfdist.engines.job_handle_and_state import Handle, Submission
from tfdist.engines.protocol import Engine
from tfdist.engines.submitted_jobs import find_submission
from tfdist.errors import ConfigError, did_you_mean, shown
from tfdist.launcher.hide_secrets import without_secrets
from tfdist.launcher.launch_tasks import check_alone
from tfdist.strategies.strategy_names import roles_started_alone, strategy_name
from tfdist.trainer.config import read_config


def requested(
    words: Sequence[str],
    config: ConfigFile = None,
    set: Changes = (),
    workers: Annotated[int | None, Flag("For a script: how many workers; 2 by default.", least=0)] = None,
    ps: Annotated[int, Flag("For a script: how many parameter servers.", least=0)] = 0,
    alone: Annotated[
        Sequence[str],
        Flag(
            "For a script: a role whose tasks are started again alone, such as worker with asynchronous"
            " parameter servers; can be repeated."
        ),
    ] = (),
    run_dir: Annotated[
        str | None,
        Flag(
            "The folder in which each run gets a folder; runs by default. For a config, it can be an address"
            " such as gs://bucket/runs."
        ),
    ] = None,
    resume: Annotated[
        str | None,
        Flag("Continue an earlier run at its last checkpoint: its handle, or the folder of the run."),
    ] = None,
    sbatch: Annotated[
        Sequence[str],
        Flag(
            "For slurm: an option of sbatch, e.g. partition=gpu, or for one role worker:partition=gpu;"
            " can be repeated."
        ),
    ] = (),
    option: Annotated[
        Sequence[str],
        Flag("An option of the engine, NAME=VALUE, such as image=registry/train:1; can be repeated."),
    ] = (),
) -> tuple[Engine, Job, Mapping[str, str]]:
    """Return the engine, the job and the engine's options that words and flags describe.

    The words are those after the flags: the engine, and the command of a script.
    """
    if not words:
        remedy = f"Name one: {', '.join(engine_names())}"
        raise ConfigError("command line", "names no engine", remedy=remedy)
    name, *command = words
    if (config is None) == (not command):
        problem = "needs either --config or the command of a script"
        raise ConfigError("command line", problem, remedy="Write --config FILE, or -- python my_script.py")
    engine = find_engine(name)
    earlier = _earlier_run(resume, engine, run_dir) if resume is not None else None
    runs = (earlier.runs if earlier else run_dir) or "runs"
    folder, address = _folder_and_address(runs, engine, is_of_script=config is None)
    if config is None:
        if set:
            raise ConfigError("--set", "changes a config, but --config is missing", remedy="Leave it out")
        job = _job_of_script(command, 2 if workers is None else workers, ps, alone, folder)
    elif workers is not None or ps or alone:
        problem = "are for a script, but --config is given"
        remedy = "Change its sections `cluster` and `strategy`"
        raise ConfigError("--workers, --ps, --alone", problem, remedy=remedy)
    else:
        job = _job_of_config(config, set, folder, address)
    if earlier:
        job = replace(job, run=earlier.name, earlier=earlier.handle)
    return engine, job, options_of([*sbatch, *option], getattr(engine, "repeatable", ()))


def _folder_and_address(run_dir: str, engine: Engine, *, is_of_script: bool) -> tuple[Path, str]:
    """Return the folder of the runs on this machine, and the address of the runs if they have one."""
    place = path_or_address(run_dir, "--run_dir")
    address = place if isinstance(place, str) else ""
    if address and is_of_script:
        problem = f"{shown(address)} is an address, which only --config takes"
        raise ConfigError("--run_dir", problem, remedy="Pass it to the script by a flag of its own")
    if address and not getattr(engine, "takes_addresses", False):
        local_path(address, "--run_dir")  # raises
    folder = absolute_path(local_path("runs" if address else run_dir, "--run_dir"), "--run_dir")
    check_utf_8("--run_dir", str(folder))
    check_utf_8("current folder", str(absolute_path(Path(), "current folder")))
    return folder, address


def _job_of_script(command: Sequence[str], workers: int, ps: int, alone: Sequence[str], folder: Path) -> Job:
    """Return the job that runs a script's command as each task of a cluster."""
    cluster = ClusterConfig.local(workers=workers, ps=ps)
    check_alone(cluster, alone, "--alone")
    return Job(
        name=_name_of(next((word for word in command if word.endswith(".py")), command[0])),
        command=tuple(command),
        counts=cluster.counts,
        folder=folder,
        made_by=made_by(),
        alone=tuple(alone),
    )


class _EarlierRun(NamedTuple):
    """An earlier run.

    Attributes:
        name: Its name.
        runs: The folder or the address of all runs; None for that of the flags.
        handle: The handle of a job of the run, if that was named.
    """

    name: str
    runs: str | None
    handle: Handle | None


def _earlier_run(text: str, engine: Engine, run_dir: str | None) -> _EarlierRun:
    """Return the run that --resume names, by the handle of its job or by its folder."""
    handle = earlier_handle(text)
    if handle is None:
        runs, _, name = text.rstrip("/").rpartition("/")
    else:
        if handle.engine != engine.name:
            expected, remedy = f"a job of {engine.name}", "Name the folder of the run instead"
            raise ConfigError("--resume", expected=expected, received=shown(text), remedy=remedy)
        submission = find_submission(handle)
        runs, _, name = submission.place.rpartition("/")
        if getattr(engine, "places_runs", False) and not submission.url:
            runs = ""
    if runs and run_dir and _whole(runs) != _whole(run_dir):
        problem = f"is {shown(run_dir)}, but --resume is in {shown(runs)}"
        raise ConfigError("--run_dir", problem, remedy="Leave it out")
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
        expected = "a handle, or the folder of a run, such as runs/cifar-123"
        raise ConfigError("--resume", expected=expected, received=shown(text))
    return _EarlierRun(name, run_dir or runs or None, handle)


def _whole(runs: str) -> str:
    place = path_or_address(runs, "--run_dir")
    if isinstance(place, str):
        return place
    return os.path.realpath(absolute_path(local_path(runs, "--run_dir"), "--run_dir"))


def earlier_handle(text: str) -> Handle | None:
    """Return the handle that --resume has; None if it has a folder or an address."""
    return Handle.parse(text) if text.partition("://")[0] in engine_names() else None


def _job_of_config(config: str, changes: Sequence[str], folder: Path, address: str) -> Job:
    """Return the job that trains as a config file and the changes to it say."""
    check_not_stream(config)
    settings = read_config(config, changes)
    cluster = settings.cluster_for_scheduler()
    settings.check_elastic(cluster)
    if settings.config.checkpoint.resume == "never":  # it has a folder of its own, or --resume says to
        changes = [*changes, "checkpoint.resume=auto"]
    for name in settings.config.engine.plugins:
        if name not in (names := engine_names()):
            raise ConfigError(
                "engine.plugins", f"there is no {shown(name)}", remedy=did_you_mean(name, names)
            )
    return Job(
        name=_name_of(config),
        command=train_command(CONFIG, RUN_DIR, changes),
        counts=cluster.counts or {"worker": 1},
        folder=folder,
        address=address,
        made_by=made_by(),
        config=absolute_path(Path(config), "--config"),
        threads=settings.config.launch.threads,
        grace=settings.config.launch.grace,
        section=settings.config.engine,
        alone=roles_started_alone(strategy_name(settings.config.strategy.name, cluster)),
        is_single=not cluster,
        port=settings.config.cluster.port or DEFAULT_PORT,
    )


def made_by() -> str:
    """Return the command line that the user typed, as one line, which may follow # in a script; no secrets.

    Raises:
        ConfigError: A word of it is not UTF-8.
    """
    check_utf_8("command line", *sys.argv)
    words = ["tfdist", Path(sys.argv[0]).stem, *without_secrets(sys.argv[1:])]
    return " ".join(shlex.join(words).splitlines())


def submission_of(words: Sequence[str]) -> tuple[Engine, Submission]:
    """Return the submitted job that the words after the flags name by its handle, and its engine."""
    if len(words) != 1:
        received = " ".join(words) or "nothing"
        raise ConfigError("command line", expected="a handle, as `tfdist list` prints it", received=received)
    handle = Handle.parse(words[0])
    return find_engine(handle.engine), find_submission(handle)


def options_of(texts: Sequence[str], repeatable: Collection[str] = ()) -> Mapping[str, str]:
    """Return the options that --sbatch and --option give as name=value, or as a name alone.

    Those that are repeatable are lists of lines.
    """
    options: dict[str, str] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not name:
            expected = "an option and its value, such as partition=gpu"
            raise ConfigError("--sbatch, --option", expected=expected, received=shown(text))
        name = name.removeprefix("--")
        if name in options and name not in repeatable:
            received = f"{shown(options[name])} and {shown(value)}"
            raise ConfigError(f"--option {name}", expected="one value", received=received)
        options[name] = f"{options[name]}\n{value}" if name in options else value
    return options


def _name_of(path: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "-", Path(path).stem) or "job"
