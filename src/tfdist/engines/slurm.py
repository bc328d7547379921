"""Run a cluster as one job step of Slurm.

The job's script generates the secret that the tasks share, starts all tasks by one `srun`, and asks Slurm to
start the job again when it ends with 138. Slurm waits for about two minutes before it does.
"""

import itertools
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from tfdist.engines.job_description import SHELL_RUN_DIR, Job, shell_command
from tfdist.engines.job_handle_and_state import Handle, State, Submission
from tfdist.engines.logs_and_exit_status import lines_of, state_of_exit_status
from tfdist.errors import LOST, ConfigError, TfdistError, shown
from tfdist.launcher.progress_file import SAVED_STEP

__all__ = ["Slurm"]

_CORES_OPTION = "cpus-per-task"
_CORES = "${SLURM_CPUS_PER_TASK:-}"
_SECONDS = 60.0  # for an answer of Slurm's controller
_STATES = {
    "PENDING": State.PENDING,
    "CONFIGURING": State.PENDING,
    "REQUEUED": State.PENDING,
    "RUNNING": State.RUNNING,
    "COMPLETING": State.RUNNING,
    "SUSPENDED": State.RUNNING,
    "COMPLETED": State.SUCCEEDED,
    "CANCELLED": State.CANCELLED,
}
_SCRIPT = """\
#!/bin/bash
# Made by: {made_by}
# Submit it with: sbatch FILE
{directives}
{setup}
export TFDIST_ROLES={roles}
TFDIST_SECRET=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \\n')
export TFDIST_SECRET
number=${{SLURM_ARRAY_JOB_ID:+${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID}}
number=${{number:-$SLURM_JOB_ID}}
run_dir={run_dir}
mkdir -p "$run_dir/logs"
# Not --output=rank-%t.log: in heterogeneous jobs Slurm 22.05 leaves out numbers.
task=(bash -c '{task}' "$run_dir" \\
    {command})
{step}
status=$?
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
_TASK = """
    exec >> "$0/logs/rank-$SLURM_PROCID.log" 2>&1
    threads={threads}
    if [ $threads ]; then
        export TF_NUM_INTRAOP_THREADS=${{TF_NUM_INTRAOP_THREADS:-$threads}}
        export OMP_NUM_THREADS=${{OMP_NUM_THREADS:-$threads}}
    fi
    if [ $SLURM_PROCID = {chief} ]; then export TFDIST_PROGRESS_FILE=$0/logs/progress.json; fi
    {run}
"""
_RUN = 'exec "$@"'
# A task that a signal has killed, and that nobody has told to end, is started again; so often without a new
# checkpoint in between.
_RUN_ALONE = """case " {ranks} " in *" $SLURM_PROCID "*) ;; *) exec "$@" ;; esac
    told=; trap told=yes TERM USR1 USR2
    starts=1; saved_before=
    while "$@"; status=$?; [ $status -gt 128 ] && [ $status != {lost} ] && [ -z "$told" ]; do
        saved=$(cat "$0/logs/{saved_step}" 2> /dev/null)
        if [ "$saved" != "$saved_before" ]; then starts=1; saved_before=$saved; fi
        if [ $starts -gt {restarts} ]; then break; fi
        starts=$((starts + 1))
        echo "Lost with status $status: start $starts of this task alone"
    done
    exit $status"""
_RESTARTS_ALONE = 3


class _Component(NamedTuple):
    """A component of the job: consecutive ranks with the same options."""

    tasks: int
    options: dict[str, str]


class Slurm:
    """Slurm's sbatch, scontrol and scancel."""

    name = "slurm"

    def render(self, job: Job, options: Mapping[str, str]) -> str:
        """Return the script for sbatch."""
        components = list(_components(job, options))
        run_dir = f"{shlex.quote(str(job.folder))}/{shlex.quote(job.name)}-$number"
        section = job.section.slurm
        words = job.words(python=section.python or sys.executable, run_dir=SHELL_RUN_DIR)
        ranks = [str(rank) for rank, task in enumerate(job.tasks) if task.type in job.alone]
        alone = {"ranks": " ".join(ranks), "restarts": _RESTARTS_ALONE, "saved_step": SAVED_STEP}
        run = _RUN_ALONE.format(**alone, lost=LOST) if ranks else _RUN
        return _SCRIPT.format(
            made_by=job.made_by,
            directives="\n".join(_directives(job, components, survives=bool(ranks))),
            setup="\n".join(section.setup),
            roles=shlex.quote(job.roles),
            run_dir=run_dir,
            task=_TASK.format(threads=job.threads or _CORES, chief=job.chief_rank, run=run),
            step=_step(components, section.srun, survives=bool(ranks)),
            command=shell_command(words),
            restarts=section.restarts,
            saved_step=SAVED_STEP,
            lost=LOST,
        )

    def submit(self, job: Job, options: Mapping[str, str]) -> Submission:
        """Pass the script to sbatch."""
        answer = _slurm("sbatch", "--parsable", text=self.render(job, options))
        number, _, cluster = answer.strip().partition(";")
        return job.submission(Handle(self.name, cluster or _cluster_name(), number))

    def state(self, submission: Submission) -> tuple[State, str]:
        """Return the state of a job; Slurm's controller forgets it some minutes after its end."""
        try:
            answer = _slurm("scontrol", "show", "job", submission.handle.number)
        except _NoSuchJobError:
            forgotten = State.UNKNOWN, "Slurm's controller has forgotten it"
            return state_of_exit_status(submission) or forgotten
        words = re.findall(r"^ *JobState=(\S+) Reason=(\S+)", answer, re.MULTILINE)
        states = [_STATES.get(word, State.FAILED) for word, _ in words]
        # An array has several: what is not yet over comes first.
        order = (State.RUNNING, State.PENDING, State.FAILED, State.CANCELLED, State.SUCCEEDED)
        state = min(states, key=order.index)
        word, reason = words[states.index(state)]
        return state, word if reason == "None" else f"{word}: {reason}"

    def logs(self, submission: Submission, tasks: Sequence[str], follow: bool) -> Iterator[tuple[str, str]]:
        """Yield the lines of the files in the run's folder."""
        return lines_of(submission, tasks, (lambda: self.state(submission)[0].is_final) if follow else None)

    def cancel(self, submission: Submission) -> None:
        """End a job; its tasks get SIGTERM, and Slurm's KillWait to save their work."""
        _slurm("scancel", submission.handle.number)


class _NoSuchJobError(TfdistError, LookupError):
    """Slurm does not know a job of this number."""


def _components(job: Job, options: Mapping[str, str]) -> Iterator[_Component]:
    """Yield the components of the job; options such as `worker:partition` are for the tasks of one role."""
    own: dict[str, dict[str, str]] = {role: {} for role in job.counts}
    common: dict[str, str] = {}
    for key, value in {**job.section.slurm.sbatch_options(), **options}.items():
        role, colon, name = key.rpartition(":")
        if colon and role not in own:
            expected = f"a role of the job ({', '.join(own)}) before the colon"
            raise ConfigError("--sbatch", expected=expected, received=shown(key))
        _check_option("--sbatch", name, value)
        (own[role] if colon else common)[name] = value
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
    }
    for index, component in enumerate(components):
        defaults = {"ntasks": str(component.tasks), **({} if index else first)}
        if index:
            yield "#SBATCH hetjob"
        for name, value in {**defaults, **component.options}.items():
            yield f"#SBATCH --{name}={shlex.quote(value)}" if value else f"#SBATCH --{name}"
        if not index:
            yield "#SBATCH --requeue"
            if survives:
                yield "#SBATCH --no-kill"  # the tasks on other nodes continue without a lost one


def _step(components: list[_Component], own: Mapping[str, str | int], *, survives: bool) -> str:
    """Return the srun that starts all tasks."""
    words = ["--kill-on-bad-exit=0", *(["--no-kill", "--wait=0"] if survives else [])]
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


def _cluster_name() -> str:
    match = re.search(r"^ClusterName\s*=\s*(\S+)", _slurm("scontrol", "show", "config"), re.MULTILINE)
    return match[1] if match else ""


def _slurm(*words: str, text: str | None = None) -> str:
    """Run a command of Slurm's; return its output.

    Raises:
        ConfigError: There is no such command, or it refuses what it is asked for.
    """
    if shutil.which(words[0]) is None:
        remedy = "Type this on a machine of the site from which jobs are submitted"
        raise ConfigError("slurm", f"{words[0]} is not found", remedy=remedy)
    try:
        done = subprocess.run(  # Slurm's own commands
            words, input=text, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise TfdistError("slurm", f"{words[0]} has not answered in {_SECONDS:g} s") from None
    if done.returncode:
        message = " ".join(done.stderr.split()).removeprefix(f"{words[0]}: error: ")
        if "Invalid job id" in message:
            raise _NoSuchJobError("slurm", message)
        raise ConfigError(" ".join(words), message or f"exited with {done.returncode}")
    return done.stdout
