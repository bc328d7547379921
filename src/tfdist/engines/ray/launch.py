"""Run a config, a function or a command as every task of a cluster on Ray."""

import contextlib
import importlib.util
import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from tfdist._utils.check_and_expand_paths import local_path, path_or_address
from tfdist._utils.new_run_folder import claimed_run_folder
from tfdist.cluster.config import ClusterConfig
from tfdist.coordination.wait_for_tasks import START_TIMEOUT
from tfdist.engines.job_description import PYTHON, train_command
from tfdist.engines.ray.launch_plan import FILES, LaunchPlan
from tfdist.errors import ConfigError, TfdistError, did_you_mean, shown
from tfdist.launcher.launch_tasks import check_alone
from tfdist.launcher.notebook import EVERY_TASK, pickled
from tfdist.strategies.strategy_names import roles_started_alone, strategy_name
from tfdist.trainer.config import read_config
from tfdist.trainer.run_folder import RunFolder
from tfdist.trainer.sections.engine import Placement

_CALL, _RESULT = "call", "result"


def launch(
    config_or_function: str | os.PathLike[str] | Callable[..., Any] | Sequence[str],
    *,
    args: Sequence[Any] = (),
    roles: Mapping[str, int] | None = None,
    resources: Mapping[str, Mapping[str, float]] | None = None,
    max_failures: int | None = None,
    placement: Placement | None = None,
    alone: Collection[str] = (),
    run_dir: str | os.PathLike[str] | None = None,
    changes: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    start_timeout: float | None = None,
    grace: float | None = None,
) -> Any:
    """Run the tasks of a cluster on Ray, each by an actor of its own, and return the result.

    A placement group reserves the resources. Each task is a process of its own beside its actor. It gets the
    cluster by TF_CONFIG and a secret that only the tasks of this launch know. A task is lost if a signal, its
    actor or its node ends, or if it ends with 138. It is started again: alone if the others can continue
    without it, else with all others, which continue from the last checkpoint.

    Args:
        config_or_function: The path of a config, whose cluster has numbers of tasks; or a function that
            each task calls, which begins with `tfdist.start()`; or the words of a command.
        args: The function's arguments.
        roles: The number of tasks of each role, such as {"ps": 1, "worker": 2}, which brings a chief with it.
            By default those of the config, or two workers.
        resources: What each task of a role needs, such as {"worker": {"CPU": 8, "GPU": 1}}; by default that
            of the config, or one CPU. A task uses as many threads as it has CPUs, and no GPU without one.
        max_failures: How often lost tasks are started again without a new checkpoint in between; by default
            as the config says, or 3.
        placement: Ray's strategy of placement; by default as the config says, or PACK.
        alone: For a function or a command: the roles (or one) whose tasks are started again alone, such as
            worker beside asynchronous parameter servers.
        run_dir: The folder of the run, on storage that all nodes share, or for a config its address in an
            object store, such as gs://bucket/runs/x; by default a new folder in runs/.
        changes: Values that replace those of the config, such as train.epochs=3.
        env: Variables for all tasks.
        start_timeout: The seconds to wait for resources, also after a node was lost; by default
            `engine.ray.start_timeout` of the config or its `strategy.start_timeout`, or 600.
        grace: The seconds that a task has to end after SIGTERM; by default `launch.grace` of the config,
            or 30.

    Returns:
        For a config the content of report.json; for a function what it has returned, by the name of the
        task; for a command None.

    Raises:
        ConfigError: The config, an argument or the environment is wrong, or resources are missing.
        TaskLost: A task was lost, and max_failures restarts were used up. The same call continues.
        TfdistError: A task has failed.
    """
    needs_ray()
    import ray

    from tfdist.engines.ray.supervisor import RayCluster

    wanted = _wanted_place(run_dir, is_config=isinstance(config_or_function, str | os.PathLike))
    with claimed_run_folder("ray") if wanted is None else contextlib.nullcontext(wanted) as place:
        run = RunFolder.at(place.absolute() if isinstance(place, Path) else place)
        plan = _plan_of(config_or_function, args, roles, alone, changes, run)
        asked = {"resources": resources, "placement": placement, "max_failures": max_failures}
        given = {name: value for name, value in asked.items() if value is not None}
        section = msgspec.structs.replace(plan.section, **given)
        check_resources(section.resources, plan.counts, "resources")
        variables = dict(env or {})
        plan = replace(
            plan,
            section=section,
            variables=variables,
            grace=plan.grace if grace is None else grace,
            start_timeout=plan.start_timeout if start_timeout is None else start_timeout,
        )
        if not ray.is_initialized():
            ray.init()
        cluster = RayCluster(plan)
        cluster.run()
        return _result(config_or_function, cluster, run)


def _wanted_place(run_dir: str | os.PathLike[str] | None, *, is_config: bool) -> Path | str | None:
    """Return the folder of the run or, for a config, its address in an object store; None for a new one."""
    if not run_dir:
        return None
    place = path_or_address(str(run_dir), "run_dir")
    return place if is_config and isinstance(place, str) else local_path(str(run_dir), "run_dir")


def needs_ray() -> None:
    """Raise ConfigError if Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise ConfigError("ray", "is not installed", remedy="pip install 'tfdist[ray]'")


def check_resources(resources: Mapping[str, Mapping[str, float]], roles: Collection[str], where: str) -> None:
    """Raise ConfigError for resources of a role that the cluster lacks, or that are not numbers."""
    for role, amounts in resources.items():
        if role not in roles:
            raise ConfigError(where, f"there is no {shown(role)}", remedy=did_you_mean(role, roles))
        if not isinstance(amounts, Mapping):
            expected = 'amounts by name, such as {"CPU": 8, "GPU": 1}'
            raise ConfigError(f"{where}: {role}", expected=expected, received=shown(amounts))
        for name, amount in amounts.items():
            if isinstance(amount, bool) or not isinstance(amount, int | float) or not amount >= 0:
                expected = "a number, 0 or more"
                raise ConfigError(f"{where}: {role}: {name}", expected=expected, received=shown(amount))
        if not any({"CPU": 1.0, **amounts}.values()):
            problem = "is nothing, for which Ray reserves no place"
            raise ConfigError(f"{where}: {role}", problem, remedy="Ask for a part of a core: {CPU: 0.1}")


def _plan_of(
    what: str | os.PathLike[str] | Callable[..., Any] | Sequence[str],
    args: Sequence[Any],
    roles: Mapping[str, int] | None,
    alone: Collection[str],
    changes: Sequence[str],
    run: RunFolder,
) -> LaunchPlan:
    is_config = isinstance(what, str | os.PathLike)
    alone = (alone,) if isinstance(alone, str) else tuple(alone)
    for name, value, is_right in (
        ("args", args, callable(what)),
        ("changes", changes, is_config),
        ("alone", alone, not is_config),
    ):
        if value and not is_right:
            problem = "is for a config" if name == "changes" else "is for a function"
            raise ConfigError(name, problem, remedy="Leave it out")
    if isinstance(what, str | os.PathLike):
        return _plan_of_config(Path(what), roles, changes, run)
    cluster = ClusterConfig.local(**_local_sizes(roles))
    check_alone(cluster, alone)
    common: dict[str, Any] = {"counts": cluster.counts, "run_dir": run.root, "alone": alone}
    if callable(what):
        command = (PYTHON, "-m", "tfdist.launcher.notebook", *_files(_CALL, _RESULT), EVERY_TASK)
        files = {_CALL: pickled(what, args, "launch")}
        return LaunchPlan(command=command, files=files, results=_files(_RESULT), **common)
    if not isinstance(what, Sequence) or not what or not all(isinstance(word, str) for word in what):
        expected = "the path of a config, a function, or the words of a command"
        raise ConfigError("launch", expected=expected, received=shown(what))
    return LaunchPlan(command=tuple(what), **common)


def _plan_of_config(
    path: Path, roles: Mapping[str, int] | None, changes: Sequence[str], run: RunFolder
) -> LaunchPlan:
    if roles is not None:
        changes = [*changes, f"cluster={json.dumps(dict(roles))}"]
    settings = read_config(path, changes)
    cluster = settings.cluster_for_scheduler("Ray")
    if settings.config.elastic is not None:
        problem = "is for tasks that others start: on Ray a lost one is started again, as max_failures says"
        raise ConfigError(f"{settings.path}: elastic", problem, remedy="Leave it out")
    [config] = _files(path.name)
    return LaunchPlan(
        command=train_command(config, run.place, changes),
        counts=cluster.counts or {"worker": 1},
        run_dir=run.root,
        alone=roles_started_alone(strategy_name(settings.config.strategy.name, cluster)),
        files={path.name: path.read_bytes()},
        results=() if run.copies else (str(run.report_file),),
        section=settings.config.engine.ray,
        start_timeout=_first(
            settings.config.engine.ray.start_timeout, settings.config.strategy.start_timeout, START_TIMEOUT
        ),
        threads=settings.config.launch.threads,
        grace=settings.config.launch.grace,
    )


def _first(*values: float | None) -> float:
    """Return the first value that is set."""
    return next(value for value in values if value is not None)


def _local_sizes(roles: Mapping[str, int] | None) -> dict[str, Any]:
    """Return the arguments of ClusterConfig.local for numbers of tasks."""
    sizes = dict({"worker": 2} if roles is None else roles)
    named: dict[str, Any] = {"workers": sizes.pop("worker", 0), "ps": sizes.pop("ps", 0)}
    named.update({role: sizes.pop(role) for role in ("chief", "evaluator") if role in sizes})
    return {**named, "jobs": sizes}


def _files(*names: str) -> tuple[str, ...]:
    return tuple(f"{FILES}/{name}" for name in names)


def _result(what: Any, cluster: Any, run: RunFolder) -> Any:
    if isinstance(what, str | os.PathLike):
        report = _stored_report(run) if run.copies else _sent_report(cluster.results(run.report_file.name))
        if report is None:
            place = run.shown(run.report_file)
            raise TfdistError(place, "is missing, though all tasks have ended well")
        return json.loads(report)
    if callable(what):
        import cloudpickle

        return {task: cloudpickle.loads(data) for task, data in cluster.results(_RESULT).items()}
    return None


def _sent_report(reports: Mapping[str, bytes]) -> bytes | None:
    """Return the report that the chief, or the first worker, has left on its node and sent here."""
    return reports.get("chief:0") or reports.get("worker:0")


def _stored_report(run: RunFolder) -> bytes | None:
    """Return the report that is in the object store."""
    from tfdist._utils.object_store import read_file  # loads TensorFlow, whose file systems it uses

    return read_file(run.shown(run.report_file))
