"""Run a job's script in the background of this machine, detached from the terminal, and look after it.

The script holds a lock for as long as it runs, so that a process that later gets its number is not taken
for it. It takes the lock itself if a user runs it again, to continue the job.
"""

import contextlib
import fcntl
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TextIO
from urllib.parse import quote

from tfdist._utils.check_and_expand_paths import exists
from tfdist._utils.run_process import is_alive
from tfdist._utils.write_files import storage_errors
from tfdist.engines.follow_logs import until_end
from tfdist.engines.job_description import Job
from tfdist.engines.job_handle_and_state import Handle, State, Submission
from tfdist.engines.log_files_and_exit_status import exit_status_path, lines_of, state_of_exit_status
from tfdist.engines.submitted_jobs import state_folder
from tfdist.errors import ConfigError
from tfdist.launcher.supervisor.process_tree import children_of
from tfdist.launcher.task_logs import last_lines, task_log_path
from tfdist.trainer.run_folder import RunFolder

_SCRIPT = """\
#!/bin/bash
# Made by: {made_by}
# Run it with: bash FILE
number=${{1:-$(date +%Y%m%d-%H%M%S)-$$}}  # no other process of this machine has it
{folders}
mkdir -p "$run_dir/logs" && cd {folder} || exit
if [ "$2" != locked ]; then  # whoever submits a job has locked it
    lock={lock}
    if [ -e "$lock" ]; then exec 9>> "$lock" && {python} -m tfdist.engines.lock_for_shell_script 9 || exit; fi
    rm -f "$run_dir/exit_status" "$run_dir/cancelled"
    if [ -e "$lock" ]; then echo $$ > "$lock"; fi
fi
export TFDIST_PROGRESS_FILE="$run_dir/logs/progress.json"
trap : HUP INT TERM  # they are for the command; this shell waits for its exit status
{command} >> {log} 2>&1{text}
status=$?
echo $status > "$run_dir/exit_status.new"
mv "$run_dir/exit_status.new" "$run_dir/exit_status"
exit $status
"""
_LINES_TO_SEARCH = 200
_MESSAGE = "tfdist: "
_COPY = "copy"  # a link to this machine's copy of a run in an object store


def script(engine: str, job: Job, command: str, *, has_launcher: bool = True, text: str | None = None) -> str:
    """Return the script that runs a command in the foreground.

    Args:
        engine: The name of the engine.
        job: The job.
        command: The words of the command, quoted for a shell with the `Job.shell_variables`.
        has_launcher: Whether the command is a launcher, which writes the logs of the tasks, and not the only
            task itself.
        text: What the command reads from its standard input, if it reads any.
    """
    return _SCRIPT.format(
        made_by=job.made_by,
        folders=job.shell_variables,
        folder=shlex.quote(str(Path.cwd())),
        lock=_shell_lock_path(engine),
        python=shlex.quote(sys.executable),
        command=command,
        log=f'"$run_dir/logs/{_log(has_launcher).name}"',
        text="" if text is None else f" << 'END OF PLAN'\n{text}\nEND OF PLAN",
    )


def submit(
    engine: str, job: Job, script: str, *, has_launcher: bool = True, copies_run: bool = False
) -> Submission:
    """Start a script in a session of its own.

    Args:
        engine: The name of the engine.
        job: The job.
        script: The script.
        has_launcher: Whether its command is a launcher.
        copies_run: Whether the launcher works in this machine's copy of a run that is in an object store. The
            folder of the run then has a link to the copy, in which the logs are.
    """
    handle, lock = _claim(engine, job)
    submission = job.submission(handle)
    run_dir = submission.run_dir
    with storage_errors(run_dir), lock:
        if copies_run and submission.url:
            (run_dir / _COPY).unlink(missing_ok=True)
            (run_dir / _COPY).symlink_to(RunFolder.at(submission.url).root)
        path = run_dir / "job.sh"
        for earlier in (path, exit_status_path(run_dir), _cancelled(submission)):
            earlier.unlink(missing_ok=True)
        # It may contain a config that only this user may read.
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o700), "w", encoding="utf-8") as file:
            file.write(script)
        (run_dir / "logs").mkdir(exist_ok=True)
        with (run_dir / _log(has_launcher)).open("ab") as output:
            process = subprocess.Popen(
                ["bash", path, handle.number, "locked"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                pass_fds=[lock.fileno()],
            )
        lock.write(f"{process.pid}\n")
    return submission


class BackgroundEngine:
    """Look after jobs whose script runs in the background of this machine."""

    name: str
    takes_addresses = True  # of an object store, for runs
    runs_again = True  # if a user executes the script of a job that has ended

    def state(self, submission: Submission) -> tuple[State, str]:
        """Return the state of a job, with the last message of a failed one."""
        pid, running = _pid(submission), (State.RUNNING, f"on {submission.handle.place}")
        if pid is not None and is_alive(pid):  # whatever another job has written to the folder of the run
            return running
        ended = state_of_exit_status(submission)  # later: it may have ended meanwhile
        if pid is not None and ended is None:  # its shell was killed
            return running
        if ended == (State.SUCCEEDED, "exit status 0"):
            return ended
        if exists(_cancelled(submission)):
            return State.CANCELLED, ended[1] if ended else "killed"
        if ended is None:
            return State.FAILED, "killed, or this machine was started again"
        return State.FAILED, ": ".join(filter(None, [ended[1], _last_message(submission)]))

    def logs(self, submission: Submission, tasks: Sequence[str], follow: bool) -> Iterator[tuple[str, str]]:
        """Yield the lines of the files in the run's folder of this machine."""
        return lines_of(submission, tasks, until_end(self.state, submission, follow), _task_log)

    def cancel(self, submission: Submission) -> None:
        """Send SIGTERM to the launcher, which passes it on to all tasks; the second time, kill them."""
        pid = _pid(submission)
        if not pid:
            raise ConfigError(str(submission.handle), "has ended already")
        with storage_errors(submission.run_dir):
            _cancelled(submission).touch()
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            if os.getpgid(pid) == pid:
                os.killpg(pid, signal.SIGTERM)
                return
            for child in children_of(pid):  # of a job that a script continues, which leads the group
                os.kill(child, signal.SIGTERM)


def _task_log(run_dir: Path, task: str) -> Path:
    copy = run_dir / _COPY
    return task_log_path(copy if exists(copy) else run_dir, task)


def _claim(engine: str, job: Job) -> tuple[Handle, TextIO]:
    """Return a handle that no other job has, and its locked file; make the folder of the run."""
    stamp, place = time.strftime("%Y%m%d-%H%M%S"), socket.gethostname()
    more = 1
    while True:
        handle = Handle(engine, place, stamp if more == 1 else f"{stamp}-{more}")
        path, run_dir = _lock_path(handle), job.run_dir(handle.number)
        with storage_errors(run_dir):
            path.parent.mkdir(parents=True, exist_ok=True)
            job.folder.mkdir(parents=True, exist_ok=True)
            if job.run:
                run_dir.mkdir(exist_ok=True)
            if _is_made(path.touch) and (job.run or _is_made_beside(path, run_dir)):
                lock = path.open("w", encoding="utf-8")
                fcntl.flock(lock, fcntl.LOCK_EX)
                return handle, lock
        more += 1


def _is_made_beside(lock: Path, run_dir: Path) -> bool:
    """Return whether the folder of the run was made; remove the file of the lock otherwise."""
    is_made = False
    try:
        is_made = _is_made(run_dir.mkdir)
    finally:
        if not is_made:
            lock.unlink()
    return is_made


def _is_made(make: Callable[..., None]) -> bool:
    """Return whether a new file or folder was made; False if there was one already."""
    try:
        make(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _pid(submission: Submission) -> int | None:
    """Return the process of a job, or 0 if it is about to start; None if the job has ended.

    Raises:
        ConfigError: The job is on another machine.
    """
    if submission.handle.place != socket.gethostname():
        problem = f"was submitted on {submission.handle.place}"
        raise ConfigError(str(submission.handle), problem, remedy="Type this there")
    try:
        with _lock_path(submission.handle).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None
    except FileNotFoundError:
        return None
    except BlockingIOError:
        return int(_lock_path(submission.handle).read_text("utf-8") or 0)


def _last_message(submission: Submission) -> str:
    launcher, only_task = (submission.run_dir / _log(has_launcher) for has_launcher in (True, False))
    path = launcher if exists(launcher) else only_task
    try:
        lines = last_lines(path, 0, _LINES_TO_SEARCH)
    except OSError:  # the job has failed all the same
        return ""
    messages = [line.removeprefix(_MESSAGE) for line in lines if line.startswith(_MESSAGE)]
    return messages[-1] if messages else ""


def _log(has_launcher: bool) -> Path:
    """Return the log of the command: that of what starts the tasks, or of the only task."""
    return Path("logs", "launcher.log" if has_launcher else "worker-0.log")


def _cancelled(submission: Submission) -> Path:
    return submission.run_dir / "cancelled"


def _lock_path(handle: Handle) -> Path:
    return _folder_of_locks() / quote(str(handle), safe="")


def _shell_lock_path(engine: str) -> str:
    """Return the same path, on the machine of the shell, as a word of a script whose variable is number."""
    before, _, after = quote(str(Handle(engine, "\0", "")), safe="").partition(quote("\0"))
    return f'{shlex.quote(str(_folder_of_locks().absolute()))}/{before}"$(uname -n)"{after}"$number"'


def _folder_of_locks() -> Path:
    return state_folder() / "running"
