"""Run a cluster as one job step of Slurm.

The job's script generates the secret that the tasks share, starts all tasks by one `srun`, and asks Slurm to
start the job again when it ends with 138. Slurm waits for about two minutes before it does.
"""

import contextlib
import functools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tfdist._utils.check_and_expand_paths import exists
from tfdist._utils.write_files import storage_errors
from tfdist.engines.client_command import run_client
from tfdist.engines.follow_logs import until_end
from tfdist.engines.job_description import Job
from tfdist.engines.job_handle_and_state import Handle, State, Submission
from tfdist.engines.log_files_and_exit_status import (
    exit_status_path,
    lines_of,
    state_of_array,
    state_of_exit_status,
)
from tfdist.engines.slurm.script import batch_script
from tfdist.errors import ConfigError, TfdistError, one_line, shown

_STATES = {
    "PENDING": State.PENDING,
    "CONFIGURING": State.PENDING,
    "REQUEUED": State.PENDING,
    "REQUEUE_FED": State.PENDING,
    "REQUEUE_HOLD": State.PENDING,
    "RESV_DEL_HOLD": State.PENDING,
    "SPECIAL_EXIT": State.PENDING,
    "RUNNING": State.RUNNING,
    "COMPLETING": State.RUNNING,
    "SUSPENDED": State.RUNNING,
    "STOPPED": State.RUNNING,
    "SIGNALING": State.RUNNING,
    "RESIZING": State.RUNNING,
    "STAGE_OUT": State.RUNNING,
    "COMPLETED": State.SUCCEEDED,
    "CANCELLED": State.CANCELLED,
}

# The variables of sbatch, after SBATCH_, whose names are not those of the options.
_VARIABLES = {
    "array": "ARRAY_INX",
    "cpu-freq": "CPU_FREQ_REQ",
    "mem": "MEM_PER_NODE",
    "switches": "REQ_SWITCH",
    "time": "TIMELIMIT",
    "verbose": "DEBUG",
}
_EXCLUDING = ({"mem", "mem-per-cpu", "mem-per-gpu"}, {"requeue", "no-requeue"})  # options that do each other
_CANCELLED = "cancelled"  # a mark in the folder of a run
_OF_THE_SITE = {"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT"}


class Slurm:
    """Slurm's sbatch, scontrol and scancel."""

    name = "slurm"
    takes_addresses = True  # of an object store, for runs
    repeatable = ("setup",)

    def render(self, job: Job, options: Mapping[str, str]) -> str:
        """Return the script for sbatch."""
        return batch_script(job, options)

    def submit(self, job: Job, options: Mapping[str, str]) -> Submission:
        """Pass the script to sbatch."""
        script = self.render(job, options)
        # The end of the job whose run this one continues: the script itself may never begin.
        with _without_end(job.run_dir("")) if job.run else contextlib.nullcontext():
            answer = _slurm("sbatch", "--parsable", text=script, environ=_environ_for(script))
        match = re.search(r"^(\d+)(?:;(\S+))?$", answer, re.MULTILINE)  # a site's own sbatch may say more
        if match is None:
            raise ConfigError("sbatch --parsable", expected="the number of the job", received=shown(answer))
        return job.submission(Handle(self.name, match[2] or self._cluster_here, match[1]))

    def state(self, submission: Submission) -> tuple[State, str]:
        """Return the state of a job; Slurm's controller forgets it some minutes after its end."""
        return _state_of(submission, self._shown(submission.handle))

    def logs(self, submission: Submission, tasks: Sequence[str], follow: bool) -> Iterator[tuple[str, str]]:
        """Yield the lines of the files in the run's folder."""
        return lines_of(submission, tasks, until_end(self.state, submission, follow))

    def cancel(self, submission: Submission) -> None:
        """End a job; its tasks get SIGTERM, and Slurm's KillWait to save their work."""
        answer = self._shown(submission.handle)
        state, _ = _state_of(submission, answer)
        # scancel says nothing then, and the run may be another job's now. A state that is not understood may
        # be that of a job that runs.
        if state.is_final and not (answer is not None and state is State.UNKNOWN):
            raise ConfigError(str(submission.handle), "has ended already")
        _slurm("scancel", *self._of_cluster(submission.handle), submission.handle.number)
        with contextlib.suppress(OSError):  # which only leaves the state unknown, some minutes after its end
            submission.run_dir.mkdir(parents=True, exist_ok=True)
            when = "before it began" if state is State.PENDING else "while it ran"
            _cancelled(submission).write_text(f"{when}\n", "utf-8")

    def _shown(self, handle: Handle) -> str | None:
        """Return what Slurm's controller says of a job; None if it knows no such job any more."""
        try:
            return _slurm("scontrol", *self._of_cluster(handle), "show", "job", handle.number)
        except _NoSuchJobError:
            return None

    def _of_cluster(self, handle: Handle) -> tuple[str, ...]:
        """Return the option for the cluster of a handle, where it is not the one of this host.

        Numbers are those of a cluster. If the accounting database does not know the other one, Slurm refuses.
        """
        return () if handle.place in ("", self._cluster_here) else (f"--clusters={handle.place}",)

    @functools.cached_property
    def _cluster_here(self) -> str:
        answer = _slurm("scontrol", "show", "config")
        match = re.search(r"^ClusterName\s*=\s*(\S+)", answer, re.MULTILINE)
        return match[1] if match else ""


def _state_of(submission: Submission, answer: str | None) -> tuple[State, str]:
    """Return the state of a job by what the controller says of it; None if it has forgotten the job."""
    if answer is None:
        return _state_of_files(submission)
    words = re.findall(r"^ *JobState=(\S+) Reason=(\S+)", answer, re.MULTILINE)
    if not words:
        return State.UNKNOWN, f"scontrol show job: {shown(answer)}"
    states = [_STATES.get(word, State.FAILED) for word, _ in words]
    # An array has several: what is not yet over comes first.
    order = (State.RUNNING, State.PENDING, State.FAILED, State.CANCELLED, State.SUCCEEDED)
    state = min(states, key=order.index)
    if state is State.SUCCEEDED and (of_array := state_of_array(submission)):
        return of_array  # the controller may have forgotten a job that has failed
    word, reason = words[states.index(state)]
    return state, word if reason == "None" else f"{word}: {reason}"


def _state_of_files(submission: Submission) -> tuple[State, str]:
    """Return the state of a job that Slurm's controller has forgotten."""
    ended = state_of_array(submission) or state_of_exit_status(submission)
    if ended and ended[0] is State.SUCCEEDED:
        return ended
    if exists(_cancelled(submission)):
        with storage_errors(_cancelled(submission)):
            when = _cancelled(submission).read_text("utf-8", "replace").strip()
        return State.CANCELLED, ended[1] if ended else when or "before it began"
    return ended or (State.UNKNOWN, "Slurm's controller has forgotten it")


@contextlib.contextmanager
def _without_end(run_dir: Path) -> Iterator[None]:
    """Remove what the folder of a run says about the end of a job; restore it if the block fails."""
    moved = {}
    for path in (exit_status_path(run_dir), run_dir / _CANCELLED):
        with contextlib.suppress(OSError):
            moved[path] = path.replace(path.with_name(f"{path.name}.earlier"))
    try:
        yield
    except TfdistError:
        for path, earlier in moved.items():
            with contextlib.suppress(OSError):
                earlier.replace(path)
        raise
    for earlier in moved.values():
        with contextlib.suppress(OSError):
            earlier.unlink()


def _cancelled(submission: Submission) -> Path:
    return submission.run_dir / _CANCELLED


class _NoSuchJobError(TfdistError, LookupError):
    """Slurm does not know a job of this number."""


def _environ_for(script: str) -> dict[str, str]:
    """Return the environment in which sbatch heeds the script, and the job is none of this shell's.

    Variables of sbatch come before the options in the script. Those of the job in which this process may run
    would go to the new one, whose tasks and srun would take them for their own.
    """
    options = set(re.findall(r"^#SBATCH --([a-z0-9-]+)", script, re.MULTILINE))
    for excluding in _EXCLUDING:
        options |= excluding if options & excluding else set()
    names = {_VARIABLES.get(option, option.upper().replace("-", "_")) for option in options}
    hidden = {f"SBATCH_{name}" for name in names}
    return {
        name: value
        for name, value in os.environ.items()
        if name not in hidden and (name in _OF_THE_SITE or not name.startswith("SLURM_"))
    }


def _slurm(*words: str, text: str | None = None, environ: Mapping[str, str] | None = None) -> str:
    """Run a command of Slurm's; return its output.

    Raises:
        ConfigError: There is no such command, or it refuses what it is asked for.
    """
    remedy = "Type this on a machine of the site from which jobs are submitted"
    done = run_client(words, "slurm", remedy, text=text, environ=environ)
    if done.returncode:
        message = one_line(done.stderr).removeprefix(f"{words[0]}: error: ")
        if "Invalid job id" in message:
            raise _NoSuchJobError("slurm", message)
        raise ConfigError(" ".join(words), message or f"exited with {done.returncode}")
    return done.stdout
