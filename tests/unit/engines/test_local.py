"""`tfdist submit local`: the launcher in the background, and what is known of it by its handle."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import commands
from tfdist.engines.job_description import CONFIG, PYTHON, RUN_DIR, Job
from tfdist.engines.job_handle_and_state import Handle, State
from tfdist.engines.local import Local
from tfdist.engines.submitted_jobs import find_submission
from tfdist.errors import ConfigError, StorageError
from tfdist.trainer.run_folder import RunFolder

SECONDS = 300  # a busy machine is no failure


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


def tfdist(*words):
    done = commands.tfdist(*words, seconds=SECONDS)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def submit(*command, options=()):
    """Submit a command as two workers, and return the record."""
    handle = tfdist("submit", "local", "--option=network_isolation=never", *options, "--", *command)
    return find_submission(Handle.parse(handle))


def until(wanted, submission):
    deadline = time.monotonic() + SECONDS
    while (state := Local().state(submission))[0] is not wanted:
        assert time.monotonic() < deadline, (state, (submission.run_dir / "logs/launcher.log").read_text())
        time.sleep(0.05)
    return state[1]


def started(submission):
    """Wait until both workers run, and return the process that leads the job's session."""
    logs = [submission.run_dir / "logs" / f"worker-{i}.log" for i in range(2)]
    deadline = time.monotonic() + SECONDS
    while not all(log.exists() and log.read_text() for log in logs):
        assert time.monotonic() < deadline, Local().state(submission)
        time.sleep(0.05)
    [lock] = Path(os.environ["XDG_STATE_HOME"], "tfdist", "running").glob("*")
    return int(lock.read_text())


def until_up_twice(submission):
    for path in (submission.run_dir / "logs" / f"worker-{i}.log" for i in range(2)):
        deadline = time.monotonic() + SECONDS
        while path.read_text().count("up\n") < 2:
            assert time.monotonic() < deadline, path.read_text()
            time.sleep(0.05)


def test_a_command_is_every_task_in_the_background():
    submission = submit("sh", "-c", "echo $TF_CONFIG")
    assert submission.handle.place == socket.gethostname()
    lines = list(Local().logs(submission, submission.tasks, True))
    assert [name for name, _ in lines] == ["worker:0", "worker:1"]
    assert all('"type": "worker"' in line for _, line in lines)
    assert until(State.SUCCEEDED, submission) == "exit status 0"
    assert submission.run_dir.name == f"sh-{submission.handle.number}"


def test_a_job_that_fails_tells_its_last_message():
    submission = submit("sh", "-c", "echo 'tfdist: of a task'; exit 3")
    words = until(State.FAILED, submission)
    assert words.startswith("exit status 1: worker:")
    assert "exited with 3" in words


def test_a_job_is_cancelled_and_its_tasks_may_save_their_work():
    submission = submit(
        "bash", "-c", "trap 'echo saved; exit 138' TERM; echo up; while true; do sleep 0.1; done"
    )
    started(submission)
    assert Local().state(submission)[0] is State.RUNNING
    told = tfdist("cancel", str(submission.handle))
    assert told == f"{submission.handle} is told to end; tfdist status says when it has"
    assert until(State.CANCELLED, submission) == "exit status 138"
    assert (submission.run_dir / "logs" / "worker-1.log").read_text().endswith("saved\n")
    again = commands.tfdist("cancel", str(submission.handle), seconds=SECONDS)
    assert (again.returncode, again.stderr) == (2, f"tfdist: {submission.handle}: has ended already\n")


def test_a_job_that_runs_is_not_ended_by_what_another_writes_to_its_folder():
    submission = submit("bash", "-c", "trap 'exit 138' TERM; echo up; while true; do sleep 0.1; done")
    started(submission)
    (submission.run_dir / "exit_status").write_text("1\n")
    assert Local().state(submission)[0] is State.RUNNING
    tfdist("cancel", str(submission.handle))
    assert until(State.CANCELLED, submission) == "exit status 138"


def test_another_job_continues_the_run_of_an_ended_one():
    command = [
        "bash",
        "-c",
        "trap 'exit 138' TERM; echo up; [ ! -e go ] || exit 0; while true; do sleep 0.1; done",
    ]
    earlier = submit(*command)
    started(earlier)
    running = commands.tfdist("submit", "local", "--resume", str(earlier.handle), "--", "x", seconds=SECONDS)
    assert running.returncode == 2
    assert f"--resume: {earlier.handle} is running" in running.stderr
    tfdist("cancel", str(earlier.handle))
    until(State.CANCELLED, earlier)
    Path("go").touch()
    later = submit(*command, options=["--resume", str(earlier.handle)])
    assert until(State.SUCCEEDED, later) == "exit status 0"
    assert later.run_dir == earlier.run_dir
    assert later.handle != earlier.handle
    assert (later.run_dir / "logs" / "worker-1.log").read_text().count("up\n") == 2


def test_a_job_that_is_continued_runs_again():
    submission = submit(
        "bash", "-c", "trap 'exit 138' TERM; echo up; [ ! -e go ] || exit 0; while true; do sleep 0.1; done"
    )
    started(submission)
    tfdist("cancel", str(submission.handle))
    until(State.CANCELLED, submission)
    words = ["bash", submission.run_dir / "job.sh", submission.handle.number]
    with subprocess.Popen(words) as continued:
        try:
            until(State.RUNNING, submission)
            again = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=False)
            assert (again.returncode, again.stderr.count("\n")) == (2, 1)
            assert again.stderr.startswith("tfdist: this job runs already")
            until_up_twice(submission)
        finally:
            tfdist("cancel", str(submission.handle))  # the group is that of this process, which stays
        assert continued.wait(SECONDS) == 138
    assert until(State.CANCELLED, submission) == "exit status 138"
    Path("go").touch()
    assert subprocess.run(words, timeout=SECONDS, check=False).returncode == 0
    assert until(State.SUCCEEDED, submission) == "exit status 0"


def test_a_job_whose_processes_are_killed_has_failed():
    submission = submit("sh", "-c", "echo up; exec sleep 600")
    os.killpg(started(submission), signal.SIGKILL)
    assert until(State.FAILED, submission) == "killed, or this machine was started again"


def test_a_job_of_another_machine_is_named(tmp_path):
    submission = submit("true")
    until(State.SUCCEEDED, submission)
    elsewhere = type(submission)(**{**vars(submission), "handle": Handle("local", "elsewhere", "1")})
    with pytest.raises(
        ConfigError, match=r"local://elsewhere/1: was submitted on elsewhere\. Type this there"
    ):
        Local().state(elsewhere)


def job(*command, **changes):
    values = {"counts": {"chief": 1, "worker": 2, "ps": 1}, "folder": Path("/my runs"), "made_by": "x"}
    return Job(**{"name": "x", "command": command, **values, **changes})


def test_options_are_those_of_the_launcher(tmp_path):
    script = Local().render(job("a b", alone=("worker",)), {"restarts": "2", "grace": "300", "pin": ""})
    assert "--workers=2 --ps=1 --alone=worker --restarts=2 --grace=300 --pin -- 'a b' >> " in script
    assert "--workers=2 --ps=1 --restarts=3 -- true >> " in Local().render(job("true"), {})
    train = (PYTHON, "-m", "tfdist.train", "--config", CONFIG, "--run_dir", RUN_DIR)
    script = Local().render(job(*train, config=Path("/c.yaml")), {"restarts": "2", "pin": ""})
    assert (
        f'{sys.executable} -m tfdist.train --config /c.yaml --run_dir "$run_dir" '
        "--set=launch.restarts=2 --set=launch.pin=true >> " in script
    )
    script = Local().render(job(*train, config=Path("/c.yaml"), address="gs://b/r"), {})
    assert "\nplace=gs://b/r/x-$number\n" in script
    assert f'{sys.executable} -m tfdist.train --config /c.yaml --run_dir "$place" >> ' in script
    with pytest.raises(ConfigError, match=r"--option: there is no restart\. Did you mean 'restarts'"):
        Local().render(job("true"), {"restart": "1"})


def test_a_folder_that_cannot_be_made_is_one_line_and_leaves_no_lock(tmp_path):
    with pytest.raises(StorageError, match=r"xxx-2.*: cannot be written: File name too long"):
        Local().submit(job("true", folder=tmp_path / "runs", name="x" * 250), {})
    assert list((tmp_path / "state" / "tfdist" / "running").iterdir()) == []


def keep(value, values):
    values.append(value)
    return value


def test_the_logs_of_a_run_in_an_object_store_are_in_the_copy(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDIST_CACHE_DIR", str(tmp_path / "cache"))
    started = []
    start = subprocess.Popen
    monkeypatch.setattr(
        subprocess, "Popen", lambda *words, **options: keep(start(*words, **options), started)
    )
    submission = Local().submit(job("true", folder=tmp_path / "runs", address="gs://b/r"), {})
    [process] = started
    assert process.wait(SECONDS) == 0
    assert submission.place == f"gs://b/r/{submission.run_dir.name}"
    logs = RunFolder.at(submission.place).root / "logs"
    logs.mkdir(parents=True)
    (logs / "ps-0.log").write_text("a line\n")
    monkeypatch.setenv("TFDIST_CACHE_DIR", str(tmp_path / "another"))  # later, in another terminal
    assert list(Local().logs(submission, ["ps:0", "worker:1"], follow=False)) == [("ps:0", "a line")]


def test_one_process_prints_to_the_log_of_its_task():
    assert '"$run_dir/logs/worker-0.log"' in Local().render(job("true", is_single=True), {})
    assert '"$run_dir/logs/launcher.log"' in Local().render(job("true"), {})
