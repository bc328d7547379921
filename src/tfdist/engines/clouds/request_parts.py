"""Build what the requests to managed services have in common, and load the clients of their vendors."""

import importlib
import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tfdist.cluster.roles_and_task_counts import ROLES
from tfdist.engines.container_entrypoint import ENTRYPOINT
from tfdist.engines.job_description import CONFIG, RUN_DIR, Job
from tfdist.engines.options_into_section import with_options
from tfdist.errors import ConfigError, did_you_mean, shown

Section = TypeVar("Section", bound=msgspec.Struct)
Value = TypeVar("Value")


def section_of(job: Job, section: Section, options: Mapping[str, str], scheme: str) -> Section:
    """Return the section of the config with the options; `worker:machine_type` is a value of one role.

    If --run_dir is an address, it is the output.

    Raises:
        ConfigError: An option is wrong, or the address does not begin with the scheme.
    """
    section = with_options(section, options, lambda role, name: (name, role) if role else name, job.counts)
    if not job.address:
        return section
    if not job.address.startswith(scheme):
        expected = f"an address that begins with {scheme}"
        raise ConfigError("--run_dir", expected=expected, received=shown(job.address))
    return msgspec.structs.replace(section, output=job.address)


def required(value: str, name: str, *, starts_with: str = "") -> str:
    """Return a value of the section that must be set."""
    if not value or not value.startswith(starts_with) or value == starts_with:
        expected = f"an address that begins with {starts_with}" if starts_with else "a value"
        remedy = f"Set it in the config, or by --option {name.rpartition('.')[2]}=…"
        raise ConfigError(
            name, expected=expected, received=shown(value) if value else "nothing", remedy=remedy
        )
    return value.rstrip("/")


def of_role(value: Value | Mapping[str, Value], role: str, name: str, default: Value | None = None) -> Value:
    """Return the value for a role from one that is for all of them, or from a mapping by role."""
    if not isinstance(value, Mapping):
        return value
    for known in value:
        if known not in ROLES:
            raise ConfigError(f"{name}.{known}", "is not a role", remedy=did_you_mean(known, ROLES))
    chosen = value.get(role, default)
    if chosen is None:
        raise ConfigError(name, f"has no value for the role {role}", remedy=f"Add {role}: …")
    return chosen


def check_roles_of_tensorflow(job: Job) -> None:
    """Raise ConfigError for tasks of named jobs, which the services do not know."""
    if others := sorted({*job.counts} - {*ROLES}):
        raise ConfigError("cluster.jobs", expected=f"only {', '.join(ROLES)}", received=others[0])


def task_command(job: Job, name: str, changes: Sequence[str] = ()) -> list[str]:
    """Return the command of every task, with the word {config} in place of the config file.

    Without --run_dir, the tasks write to the folders that the service names; with it, to a folder in it that
    has the job's name.
    """
    words = list(job.words(python="python", run_dir=RUN_DIR, config=CONFIG))
    if RUN_DIR in words:
        at = words.index(RUN_DIR)
        if job.folder == Path("runs").absolute():  # the default
            del words[at - 1 : at + 1]
        else:
            words[at] = str(job.folder / run_name(job, name))
    if job.config is not None:
        words += [f"--set={change}" for change in changes]
    return [*ENTRYPOINT, *words]


def new_name(job: Job) -> str:
    """Return a name for a new job, which no other job has."""
    stem = "".join(c if c.isascii() and c.isalnum() else "-" for c in job.name).strip("-")[:32] or "job"
    return f"{stem.lower()}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def run_name(job: Job, name: str) -> str:
    """Return the name of the run: that of an earlier one which the job continues, or of the job itself."""
    return job.run or name


def new_secret() -> str:
    """Return a new secret for the tasks of a cluster."""
    return secrets.token_hex(32)


def load_client(module: str, extra: str) -> Any:
    """Return a module of the vendor's client.

    Raises:
        ConfigError: It is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        remedy = f"Install it: pip install 'tfdist[{extra}]'"
        raise ConfigError(extra, f"{error.name} is not installed", remedy=remedy) from None
