"""Write the file that Compose reads: a service for each task, and what the tasks share."""

import itertools
import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from textwrap import indent
from typing import Any, NamedTuple

import msgspec
import yaml

from tfdist._utils.check_and_expand_paths import default_cache_dir, expanded_path
from tfdist.cluster.config import ClusterConfig, Task
from tfdist.engines.container_entrypoint import ENTRYPOINT
from tfdist.engines.job_description import Job
from tfdist.engines.log_files_and_exit_status import saved_step_path
from tfdist.engines.options_into_section import OptionPath, by_role, check_roles, merged, with_options
from tfdist.engines.restart_in_container import RESTARTS, SAVED_STEP_FILE
from tfdist.engines.yaml_dumper import Dumper
from tfdist.errors import ConfigError
from tfdist.launcher.share_cores_and_gpus import own_gpus
from tfdist.trainer.sections.engine import ComposeSection

_PORT = 2222
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_PROJECT = "\0project"  # stands for the name of the project, which Compose knows
_CONFIG = "/etc/tfdist/config.yaml"
_SECRET = "/run/secrets/secret"  # noqa: S105
_OWN_KEYS = {
    "command": "Leave it out",
    "configs": "Leave it out",
    "environment": "Write more variables to engine.compose.environment",
    "networks": "Use engine.compose.internal",
    "secrets": "Leave it out",
    "volumes": "Write more volumes to engine.compose.volumes",
}
_FILE = """\
# Made by: {made_by}
# Submit it with: {prepare}TFDIST_SECRET=$(openssl rand -hex 32) docker compose --file FILE up --detach
name: {name}
x-environment: &environment
{environment}x-task: &task
{task}services:
{services}networks:
  tasks: {{internal: {internal}}}
secrets:
  secret: {{environment: TFDIST_SECRET}}
"""
_WIDTH = 10_000  # one line for each list
_SERVICE = """\
  {name}:
    <<: *task
    hostname: {name}
    environment:
      <<: *environment
"""


class _Dumper(Dumper):
    """Write lists of words in one line."""

    def list_of(self, values: list[Any]) -> yaml.Node:
        is_flat = not any(isinstance(value, (dict, list)) for value in values)
        return self.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=is_flat)


_Dumper.add_representer(list, _Dumper.list_of)


class _Mount(NamedTuple):
    """A folder of this machine, at the same path in the containers, or a named volume."""

    source: str
    target: str

    @property
    def is_folder(self) -> bool:
        """Return whether it is a folder of this machine."""
        return "/" in self.source

    def value(self) -> dict[str, Any]:
        """Return it as a volume of a service."""
        kind = "bind" if self.is_folder else "volume"
        value = {"type": kind, "source": _escaped(self.source), "target": _escaped(self.target)}
        # Without this, the engine would create a missing folder, as root.
        return {**value, "bind": {"create_host_path": False}} if self.is_folder else value


def service_name(task: Task) -> str:
    """Return the name of a task's service, which is its host name."""
    return f"{task.type.replace('_', '-')}-{task.index}"


def project_stem(job: Job) -> str:
    """Return how the names of a job's projects begin."""
    return re.sub(r"[^a-z0-9_-]", "-", job.name.lower()).lstrip("-_") or "job"


def folder_of_runs(job: Job) -> Path:
    """Return the folder of all runs, as the tasks see it."""
    return Path(_mount_of_runs(job).target)


def folders_to_make(job: Job) -> list[Path]:
    """Return the folders of this machine that tasks write to; they must exist before the containers."""
    return [Path(mount.source) for mount in (_mount_of_runs(job), _mount_of_cache(job)) if mount.is_folder]


def job_with_options(job: Job, options: Mapping[str, str]) -> Job:
    """Return the job with a section that contains the options.

    An option is a key of `engine.compose`, or of a service, or `worker:key` for services of one role.
    """
    section = with_options(job.section.compose, options, _path_of)
    return replace(job, section=msgspec.structs.replace(job.section, compose=section))


def _path_of(role: str, name: str) -> OptionPath:
    if role:
        return ("gpus", role) if name == "gpus" else ("service", f"{role}:{name}")
    return name if name.partition(".")[0] in ComposeSection.__struct_fields__ else ("service", name)


def compose_file(job: Job, user: str = "") -> str:
    """Return the file for Compose, whose tasks are a user such as 1000:1000, by default this one."""
    mounts = _mounts(job)
    folders = [str(folder) for folder in folders_to_make(job)]
    common, of_roles = _service_keys(job)
    text = _FILE.format(
        made_by=job.made_by,
        prepare=f"mkdir -p {shlex.join(folders)} && " if folders else "",
        name=json.dumps(project_stem(job)),
        environment=_dumped(_environment(job), 2),
        task=_dumped({**_task(job, mounts, user or f"{os.getuid()}:{os.getgid()}"), **common}, 2),
        services="".join(_services(job, common.get("deploy") or {}, of_roles)),
        internal=json.dumps(_is_internal(job)),
    )
    if job.config_text is not None:
        text += _dumped({"configs": {"config": {"content": _escaped(job.config_text)}}}, 0)
    if volumes := sorted({mount.source for mount in mounts if not mount.is_folder}):
        text += _dumped({"volumes": {name: {"name": name} for name in volumes}}, 0)
    return text


def _is_internal(job: Job) -> bool:
    """Return whether the tasks reach nothing but each other."""
    wanted = job.section.compose.internal
    if wanted and job.address:
        problem = "is true, but the tasks must reach the object store of the run"
        raise ConfigError("engine.compose.internal", problem, remedy="Leave it out, or use a folder")
    return not job.address if wanted is None else wanted


def _task(job: Job, mounts: list[_Mount], user: str) -> dict[str, Any]:
    """Return what the services of all tasks have in common."""
    section = job.section.compose
    run = job.run or _PROJECT
    place = job.address_of(run) if job.address else str(folder_of_runs(job) / run)
    words = job.words(python="python", run_dir=place, config=_CONFIG)
    task: dict[str, Any] = {
        "image": section.image,
        "command": [_escaped(word) for word in (*ENTRYPOINT, *words)],
        "init": True,
        "restart": "no",
        "stop_grace_period": f"{section.stop_grace_period}s",
        "networks": ["tasks"],
    }
    if any(mount.is_folder for mount in mounts):
        task["user"] = user
    if section.code == "mount":
        task["working_dir"] = _escaped(str(Path.cwd()))
    task["secrets"] = ["secret"]
    if job.config is not None:
        task["configs"] = [{"source": "config", "target": _CONFIG}]
    task["volumes"] = [*(mount.value() for mount in mounts), *section.volumes]
    return task


def _environment(job: Job) -> dict[str, Any]:
    section = job.section.compose
    variables = {
        "HOME": "/tmp",  # noqa: S108  # the user has no folder in the container
        "PYTHONUNBUFFERED": "1",
        "TFDIST_CACHE_DIR": _escaped(_mount_of_cache(job).target),
        RESTARTS: job.section.compose.restarts,
        SAVED_STEP_FILE: _escaped(str(saved_step_path(folder_of_runs(job) / (job.run or _PROJECT)))),
        "TFDIST_SECRET_FILE": _SECRET,
        **job.thread_variables,
    }
    if data := _mount_of_data(job):
        variables["TFDS_DATA_DIR"] = _escaped(data.target)
    return {**variables, **section.environment}


def _services(
    job: Job, deploy: Mapping[str, Any], of_roles: Mapping[str, Mapping[str, Any]]
) -> Iterator[str]:
    """Yield the services; with GPUs, each has the whole of `deploy`, of which YAML merges no parts."""
    cluster = ClusterConfig.of_addresses({task: f"{service_name(task)}:{_PORT}" for task in job.tasks})
    gpus = _free_gpus()
    for task in job.tasks:
        keys = dict(of_roles.get(task.type, {}))
        if count := job.section.compose.gpus.get(task.type):
            own = list(itertools.islice(gpus, count))
            if len(own) < count:
                total = sum(wanted * job.counts[role] for role, wanted in job.section.compose.gpus.items())
                received = f"CUDA_VISIBLE_DEVICES={os.environ[_VISIBLE]}"
                raise ConfigError("engine.compose.gpus", expected=f"{total} GPUs", received=received)
            of_gpus = _gpus(own)
            keys["deploy"] = merged(merged(deploy, keys.get("deploy") or {}), of_gpus)
        yield _SERVICE.format(name=service_name(task))
        if not job.is_single:
            yield f"      TF_CONFIG: {_quoted(_escaped(cluster.tf_config_json(*task)))}\n"
        yield _dumped(keys, 4) if keys else ""


def _free_gpus() -> Iterator[str]:
    """Return the GPUs that this shell may use, if it says so; else all, from the first one on."""
    return iter(own_gpus()) if _VISIBLE in os.environ else map(str, itertools.count())


def _gpus(numbers: list[str]) -> dict[str, Any]:
    devices = [{"driver": "nvidia", "device_ids": numbers, "capabilities": ["gpu"]}]
    return {"resources": {"reservations": {"devices": devices}}}


def _service_keys(job: Job) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the keys of all services, and those of each role's alone."""
    section = job.section.compose
    check_roles(section.gpus, job.counts, "engine.compose.gpus")
    common, own = by_role(section.service, job.counts, "engine.compose.service")
    for name in {**common, **{name: None for keys in own.values() for name in keys}}:
        if name in _OWN_KEYS:
            raise ConfigError("engine.compose.service", f"{name} is set by tfdist", remedy=_OWN_KEYS[name])
    return common, own


def _mounts(job: Job) -> list[_Mount]:
    """Return the mounts of every task; none is inside another one."""
    mounts = [_mount_of_runs(job), _mount_of_cache(job)]
    if data := _mount_of_data(job):
        mounts.append(data)
    if job.section.compose.code == "mount":
        mounts.append(_folder(Path.cwd()))
    targets = {Path(mount.target) for mount in mounts}
    return [mount for mount in dict.fromkeys(mounts) if targets.isdisjoint(Path(mount.target).parents)]


def _mount_of_runs(job: Job) -> _Mount:
    volume = job.section.compose.runs
    return _Mount(volume, "/runs") if volume else _folder(job.folder)


def _mount_of_cache(job: Job) -> _Mount:
    chosen = job.section.compose.cache
    return _folder_or_volume(chosen, "/cache", "cache") if chosen else _folder(default_cache_dir())


def _mount_of_data(job: Job) -> _Mount | None:
    """Return the mount of prepared data sets, if there are any."""
    if chosen := job.section.compose.data:
        return _folder_or_volume(chosen, "/data", "data")
    if folder := os.environ.get("TFDS_DATA_DIR"):
        return _folder(expanded_path(Path(folder), "TFDS_DATA_DIR"))
    # With a volume for the cache, Docker may be on another machine.
    if not _mount_of_cache(job).is_folder:
        return None
    usual = expanded_path(Path("~/tensorflow_datasets"), "home folder")
    return _folder(usual) if usual.is_dir() else None


def _folder_or_volume(text: str, target: str, key: str) -> _Mount:
    """Return the mount of a value of the config, where a name is that of a volume."""
    is_folder = "/" in text or text.startswith(("~", "."))
    return _folder(expanded_path(Path(text), f"engine.compose.{key}")) if is_folder else _Mount(text, target)


def _folder(path: Path) -> _Mount:
    absolute = str(path.absolute())
    return _Mount(absolute, absolute)


def _escaped(text: str) -> str:
    """Return a text in which Compose replaces nothing but the name of the project."""
    return text.replace("$", "$$").replace(_PROJECT, "${COMPOSE_PROJECT_NAME}")


def _dumped(value: Mapping[str, Any], spaces: int) -> str:
    text = yaml.dump(dict(value), Dumper=_Dumper, sort_keys=False, width=_WIDTH)
    return indent(text, " " * spaces)


def _quoted(text: str) -> str:
    """Return a text of one line as YAML; the dumper takes 20 ms for the TF_CONFIG of 1,000 tasks."""
    return "'" + text.replace("'", "''") + "'"
