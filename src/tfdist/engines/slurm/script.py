"""Write the script for sbatch: what it asks Slurm for, how the tasks start, and when the job starts again.

The lines of batch.sh, which are the same in every job, follow what depends on the job.
"""

import itertools
import json
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tfdist.engines.job_description import SHELL_CONFIG, Job, shell_command
from tfdist.engines.options_into_section import by_role, with_options
from tfdist.errors import LOST, ConfigError, shown
from tfdist.launcher.progress_for_engines import SAVED_STEP
from tfdist.trainer.sections.engine import SlurmSection

_CORES_OPTION = "cpus-per-task"
_NO_REQUEUE = "no-requeue"
_GPUS_OF_A_TASK = {"gpus-per-task", "gpu-bind", "ntasks-per-gpu", "tres-bind", "tres-per-task"}
_NUMBER = """\
number=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
number=${number:-$SLURM_JOB_ID}"""


class _Component(NamedTuple):
    """A component of the job: consecutive ranks with the same options."""

    tasks: int
    options: dict[str, str]


def batch_script(job: Job, options: Mapping[str, str]) -> str:
    """Return the script of a job, with options of sbatch: what depends on the job, and then batch.sh."""
    section, options = _with_options(job.section.slurm, options)
    components = list(_components(job, section, options))
    if job.run and any("array" in component.options for component in components):
        problem = "is not supported with a job array, each of whose jobs has a run of its own"
        raise ConfigError("--resume", problem, remedy="Leave out the option array")
    python = section.python or sys.executable
    words = job.words(python=python, run_dir=job.shell_place, config=SHELL_CONFIG)
    may_requeue = not any(_NO_REQUEUE in component.options for component in components)
    alone_ranks = (str(rank) for rank, task in enumerate(job.tasks) if task.type in job.alone)
    computing_ranks = (str(rank) for rank, task in enumerate(job.tasks) if task.type in job.computing_roles)
    names = {*section.srun, *(name for component in components for name in component.options)}
    variables = {
        "lead": job.chief_rank,
        "alone_ranks": " ".join(alone_ranks),
        "transient_roles": " ".join(sorted({*job.alone} - {"evaluator"})),
        "serving_roles": " ".join(job.serving_roles),
        "computing_ranks": " ".join(computing_ranks),
        "own_gpus": "yes" if names & _GPUS_OF_A_TASK else "",
        "threads": job.threads or "",
        "restart_status": LOST,
        "most_restarts": section.restarts if may_requeue else 0,
    }
    lines = (
        "#!/bin/bash",
        f"# Made by: {job.made_by}",
        "# Submit it with: sbatch FILE",
        *_directives(job, components, survives=_survives_nodes(job)),
        *section.setup,
        *(["set +eu +o pipefail  # the lines below look at statuses themselves"] if section.setup else []),
        f"export TFDIST_ROLES={shlex.quote(job.roles)}",
        _NUMBER,
        job.shell_variables,
        f'saved_step="$run_dir/logs/{SAVED_STEP}"',
        *(f"{name}={shlex.quote(str(value))}" for name, value in variables.items()),
        f"names=({' '.join(map(str, job.tasks))})",
        f"command=({shell_command(words)})",
        f"start_tasks() {{\n    {_step(components, section.srun, job)}\n}}",
        'mkdir -p "$run_dir/logs" || exit 2',
        *_config(job),
        Path(__file__).with_name("batch.sh").read_text("utf-8"),
    )
    return "\n".join(lines)


def _config(job: Job) -> Iterator[str]:
    """Yield the lines that write the config to the folder of the run; none for a script."""
    if job.config_text is None:
        return
    text, end = job.config_text.removesuffix("\n"), "END OF CONFIG"
    while end in text:
        end += "."
    yield "# The config as it was at the submission. Only this user may read it, because it may have secrets."
    yield f"(umask 077 && cat > {SHELL_CONFIG}) << '{end}' || exit 2\n{text}\n{end}"


def _with_options(section: SlurmSection, options: Mapping[str, str]) -> tuple[SlurmSection, dict[str, str]]:
    """Return the section with those options that are its own keys, and the rest, which are for sbatch."""
    own = {*SlurmSection.__struct_fields__} - {"sbatch"}
    of_section = {name: text for name, text in options.items() if name.partition(".")[0] in own}
    rest = {name: text for name, text in options.items() if name not in of_section}
    if "setup" in of_section:
        of_section["setup"] = json.dumps([*section.setup, *of_section["setup"].split("\n")])
    return with_options(section, of_section), rest


def _components(job: Job, section: SlurmSection, options: Mapping[str, str]) -> Iterator[_Component]:
    """Yield the components of the job; options such as `worker:partition` are for the tasks of one role."""
    common, own = by_role({**section.sbatch_options(), **options}, job.counts, "--sbatch")
    for values in (common, *own.values()):
        for name, value in values.items():
            _check_option("--sbatch", name, value)
    roles = sorted(job.counts)
    for chosen, group in itertools.groupby(roles, key=own.__getitem__):
        yield _Component(sum(job.counts[role] for role in group), {**common, **chosen})


def _check_option(where: str, name: str, value: str) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9-]*", name):
        expected = "a long option and its value, such as partition=gpu"
        raise ConfigError(where, expected=expected, received=shown(name))
    if not value.isprintable():
        raise ConfigError(f"{where} {name}", expected="one line", received=shown(value))


def _directives(job: Job, components: list[_Component], *, survives: bool) -> Iterator[str]:
    is_array = any("array" in component.options for component in components)
    first = {
        "job-name": job.name,
        "output": "slurm-%A_%a.out" if is_array else "slurm-%j.out",
        "open-mode": "append",
        "signal": "TERM@90",  # before the time limit; Slurm never requeues a job that has run into it
        **({} if any(_NO_REQUEUE in component.options for component in components) else {"requeue": ""}),
        **({"no-kill": ""} if survives else {}),  # the tasks on other nodes continue without a lost one
    }
    for index, component in enumerate(components):
        defaults = {"ntasks": str(component.tasks), **({} if index else first)}
        if index:
            yield "#SBATCH hetjob"
        for name, value in {**defaults, **component.options}.items():
            yield f"#SBATCH --{name}={shlex.quote(value)}" if value else f"#SBATCH --{name}"


def _survives_nodes(job: Job) -> bool:
    """Return whether the job continues without a lost node: if workers come and go."""
    return bool({*job.counts} & {*job.alone} - {"evaluator"})


def _step(components: list[_Component], own: Mapping[str, str | int], job: Job) -> str:
    """Return the srun that starts all tasks."""
    words = ["--kill-on-bad-exit=0", *(["--no-kill"] if _survives_nodes(job) else [])]
    words += ["--wait=0"] if {*job.counts} & {*job.alone} else []
    for name, value in own.items():
        _check_option("engine.slurm.srun", name, str(value))
        words.append(f"--{name}={shlex.quote(str(value))}" if value != "" else f"--{name}")
    options = " ".join(words)
    if len(components) == 1:
        # Since Slurm 22.05 a step does not get the cores for each task that the job has asked for.
        return f'srun {options} ${{SLURM_CPUS_PER_TASK:+--cpus-per-task=$SLURM_CPUS_PER_TASK}} "${{task[@]}}"'
    # Slurm 22.05 gives the tasks of all components the SLURM_CPUS_PER_TASK of the last one.
    states_cores = any(_CORES_OPTION in component.options for component in components)
    parts = []
    for index, component in enumerate(components):
        cores = shlex.quote(component.options.get(_CORES_OPTION, "1"))
        sized = f"--cpus-per-task={cores} env SLURM_CPUS_PER_TASK={cores} " if states_cores else ""
        parts.append(f'--het-group={index} {options} {sized}"${{task[@]}}"')
    return "srun " + " : ".join(parts)
