"""Write the script for sbatch: what it asks Slurm for, how the tasks start, and when the job starts again.

Each task is a shell that runs the command, passes signals on to it, and records how it has ended in a folder
that the script reads after the step. srun itself tells only the highest exit status of all tasks.
"""

import itertools
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tfdist.engines.job_description import SHELL_CONFIG, Job, shell_command
from tfdist.engines.options_into_section import by_role
from tfdist.errors import LOST, ConfigError, shown
from tfdist.launcher.send_reports import SAVED_STEP

_CORES_OPTION = "cpus-per-task"
_CORES = "${SLURM_CPUS_PER_TASK:-}"
_RESTARTS_ALONE = 3
_NO_REQUEUE = "no-requeue"
_SCRIPT = """\
#!/bin/bash
# Made by: {made_by}
# Submit it with: sbatch FILE
{directives}
{setup}
export TFDIST_ROLES={roles}
TFDIST_SECRET=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \\n')
export TFDIST_SECRET
export SLURM_EXPORT_ENV=ALL  # with sbatch --export=NONE, srun would not pass them on
number=${{SLURM_ARRAY_JOB_ID:+${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID}}
number=${{number:-$SLURM_JOB_ID}}
{folders}
mkdir -p "$run_dir/logs" || exit 2
{config}rm -rf "$run_dir"/.ends-*
ends=$(mktemp -d "$run_dir/.ends-XXXXXX") || exit 2
# This way to track processes sends signals only to a task's first process, which is a shell.
passes_on=$(scontrol show config 2> /dev/null | grep -o proctrack/cgroup)
# Not --output=rank-%t.log: in heterogeneous jobs Slurm 22.05 leaves out numbers.
task=(bash -c '{task}' "$run_dir" "$ends" "$passes_on" \\
    {command})
{watch}{step}
status=$?
{unwatch}{decision}
rm -rf "$ends"
echo $status > "$run_dir/exit_status"
# {lost}: all is saved, and the same command continues. A new checkpoint renews the restarts.
saved=$(cat "$run_dir/logs/{saved_step}" 2> /dev/null)
restarts=0
if [ -f "$run_dir/restarts" ]; then read -r restarts saved_before < "$run_dir/restarts"; fi
if [ "$saved" != "${{saved_before:-}}" ]; then restarts=0; fi
if [ $status = {lost} ] && [ $restarts -lt {restarts} ]; then
    echo "$((restarts + 1)) $saved" > "$run_dir/restarts"
    scontrol requeue "$number"
fi
exit $status
"""
# The config as it was when the job was submitted. Only this user may read it, because it may contain secrets.
_CONFIG = """\
(umask 077 && cat > {path}) << '{end}' || exit 2
{text}
{end}
"""
# 193 to 255 are no signals, but exit statuses such as that of sys.exit(-1).
_IS_SIGNAL = f"is_signal() {{ [ $1 -gt 128 ] && [ $1 -le 192 ] && [ $1 != {LOST} ]; }}"
_TASK = """
    exec >> "$0/logs/rank-$SLURM_PROCID.log" 2>&1
    {is_signal}
    ends=$1 passes_on=$2 told=
    shift 2
    on_signal() {{ told=$1 again=yes; if [ "$passes_on" ]; then kill -$1 $! 2> /dev/null; fi; }}
    for name in TERM INT HUP USR1 USR2; do trap "on_signal $name" $name; done
    : > "$ends/$SLURM_PROCID.started"
    threads={threads}
    if [ $threads ]; then
        export TF_NUM_INTRAOP_THREADS=${{TF_NUM_INTRAOP_THREADS:-$threads}}
        export OMP_NUM_THREADS=${{OMP_NUM_THREADS:-$threads}}
    fi
    if [ $SLURM_PROCID = {lead} ]; then export TFDIST_PROGRESS_FILE=$0/logs/progress.json; fi
    run() {{
        told_before=$told
        (trap - INT QUIT; exec "$@") <&0 &
        if [ "$told_before" ]; then kill -$told_before $!; fi
        while again=; wait $!; status=$?; [ "$again" ]; do :; done
    }}
    run "$@"
    is_alone=
{alone}
    if [ $status != 0 ] && [ -z "$is_alone" ]; then ln -s $status "$ends/first" 2> /dev/null; fi
    ln -s $status "$ends/$SLURM_PROCID"
    exit $status
"""
# A task that a signal has killed, and that nobody has told to end, is started again: so many times, which
# each new checkpoint renews.
_ALONE = """\
    case " {ranks} " in *" $SLURM_PROCID "*) is_alone=yes ;; esac
    starts=1 saved_before=
    while [ $is_alone ] && is_signal $status && [ -z "$told" ]; do
        saved=$(cat "$0/logs/{saved_step}" 2> /dev/null)
        if [ "$saved" != "$saved_before" ]; then starts=1; saved_before=$saved; fi
        if [ $starts -gt {restarts} ]; then break; fi
        starts=$((starts + 1))
        echo "Lost with status $status: start $starts of this task alone"
        run "$@"
    done"""
# A task of these roles does not end with the others: an evaluator waits for the next checkpoint.
_WATCH = """\
(
    until [ -L "$ends/first" ]; do sleep 5; done
    sleep {grace}
    if [ "$(readlink "$ends/{lead}")" != 0 ]; then scancel --signal=TERM "$SLURM_JOB_ID"; fi
) > /dev/null 2>&1 &
watch=$!
"""
_UNWATCH = "kill $watch 2> /dev/null\n"
_GRACE = 60  # seconds in which the tasks that cannot do without a lost one save their work and end
_DECISION = """\
# As the launcher decides: a restart helps if a signal has ended a task, or its status is {lost}. It does not
# if a task has ended with another status, unless one that a signal has ended was the first to fail.
{is_signal}
names=({names})
lead=$(readlink "$ends/{lead}")
own='' lost='' missing=''
for rank in "${{!names[@]}}"; do
    end=$(readlink "$ends/$rank")
    if [ -z "$end" ] && [ -e "$ends/$rank.started" ]; then end=137; fi  # killed with its shell, or its node
    if [ -z "$end" ]; then missing=yes; fi
    if [ "${{end:-0}}" = 0 ]; then continue; fi
    echo "${{names[rank]}} ended with $end"
    kind=own
    if [ $end = {lost} ] || is_signal $end; then kind=lost; fi
    case "$lead $kind ${{names[rank]%:*}}" in {survived}) continue ;; esac
    if [ $kind = own ]; then own=${{own:-$end}}; else lost=yes; fi
done
first=$(readlink "$ends/first")
if is_signal ${{first:-0}}; then own=''; fi
if [ "$own" ]; then status=$own
elif [ "$lost" ]; then status={lost}
elif [ "$lead" = 0 ] && [ -z "$missing" ]; then status=0
elif is_signal $status; then status={lost}
fi"""


class _Component(NamedTuple):
    """A component of the job: consecutive ranks with the same options."""

    tasks: int
    options: dict[str, str]


def batch_script(job: Job, options: Mapping[str, str]) -> str:
    """Return the script of a job, with options of sbatch."""
    components = list(_components(job, options))
    section = job.section.slurm
    python = section.python or sys.executable
    words = job.words(python=python, run_dir=job.shell_place, config=SHELL_CONFIG)
    alone = {*job.counts} & {*job.alone}
    may_requeue = not any(_NO_REQUEUE in component.options for component in components)
    return _SCRIPT.format(
        made_by=job.made_by,
        directives="\n".join(_directives(job, components, survives=_survives_nodes(job))),
        setup="\n".join(section.setup),
        roles=shlex.quote(job.roles),
        folders=job.shell_variables,
        config=_config(job),
        task=_task(job),
        watch=_WATCH.format(grace=_GRACE, lead=job.chief_rank) if alone else "",
        step=_step(components, section.srun, job),
        unwatch=_UNWATCH if alone else "",
        command=shell_command(words),
        decision=_decision(job),
        restarts=section.restarts if may_requeue else 0,
        saved_step=SAVED_STEP,
        lost=LOST,
    )


def _config(job: Job) -> str:
    """Return the part of the script that writes the config to the folder of the run; empty for a script."""
    if job.config_text is None:
        return ""
    text, end = job.config_text.removesuffix("\n"), "END OF CONFIG"
    while end in text:
        end += "."
    return _CONFIG.format(path=SHELL_CONFIG, text=text, end=end)


def _task(job: Job) -> str:
    """Return the program of the shell that is each task."""
    ranks = [str(rank) for rank, task in enumerate(job.tasks) if task.type in job.alone]
    alone = _ALONE.format(ranks=" ".join(ranks), restarts=_RESTARTS_ALONE, saved_step=SAVED_STEP)
    return _TASK.format(
        is_signal=_IS_SIGNAL, threads=job.threads or _CORES, lead=job.chief_rank, alone=alone if ranks else ""
    )


def _decision(job: Job) -> str:
    """Return the part of the script that decides how the job has ended."""
    # Whatever has ended a worker that comes and goes; and a task that serves, if a restart would help.
    survived = [f"'0 '*' {role}'" for role in sorted(job.alone) if role != "evaluator"]
    survived += [f"'0 lost {role}'" for role in job.serving_roles]
    return _DECISION.format(
        is_signal=_IS_SIGNAL,
        names=" ".join(map(str, job.tasks)),
        lead=job.chief_rank,
        survived=" | ".join(survived) or "''",
        lost=LOST,
    )


def _components(job: Job, options: Mapping[str, str]) -> Iterator[_Component]:
    """Yield the components of the job; options such as `worker:partition` are for the tasks of one role."""
    common, own = by_role({**job.section.slurm.sbatch_options(), **options}, job.counts, "--sbatch")
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
    first = {
        "job-name": job.name,
        "output": "slurm-%j.out",
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
