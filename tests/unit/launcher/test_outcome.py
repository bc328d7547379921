"""However a launch ends, nothing of it is left: launcher, supervisor or tasks killed, at any moment."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time

import pytest
from launched import SECONDS, alive, driver, holds, nothing_left, run, started, until  # noqa: F401  # a fixture

from tfdist.launcher.outcome import LaunchError
from tfdist.launcher.run_events import TaskExited, read_events

pytestmark = [
    pytest.mark.usefixtures("nothing_left"),
    pytest.mark.skipif(sys.platform != "linux", reason="finds processes by /proc"),
]

# Each task, deaf to SIGTERM, has a child, a child in a session of its own, and a daemon that nobody waits for.
TREE = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
ready, tell = os.pipe()
for kind in ("child", "session", "daemon"):
    if (pid := os.fork()) == 0:
        if kind != "child":
            os.setsid()
        if kind == "daemon" and os.fork():
            os._exit(0)
        os.write(tell, b".")
        time.sleep(600)
for _ in range(3):
    os.read(ready, 1)
os.waitpid(pid, 0)  # that of the daemon's parent
print("tree stands", flush=True)
time.sleep(600)
"""
TREES = 2 * 4  # processes of two tasks, each with its three descendants
IDLE = "import time; print('up', flush=True); time.sleep(600)"


def until_up(run_dir, text):
    # To the end of the line: Python writes that by itself here, and a signal may come in between.
    for i in range(2):
        until(lambda i=i: holds(run_dir / f"logs/worker-{i}.log", f"{text}\n"), f"worker {i} is up")


def forest(run_dir, **options):
    """Start a launcher with trees as its tasks, and give it when they stand."""
    return started(driver(TREE, run_dir, **options))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_the_launcher_ends_all(tmp_path, nothing_left, number):  # noqa: F811
    with forest(tmp_path, grace=0.5) as process:
        until_up(tmp_path, "tree stands")
        assert len(alive(nothing_left)) == TREES + 3  # the launcher, its supervisor and that one's log writer
        process.send_signal(number)
        out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 128 + number
    assert err.decode() == f"tfdist: launcher: stopped by {number.name}; every task has ended\n"
    assert f"[launcher] {number.name}: ending the tasks (SIGTERM, and SIGKILL after 0.5 s" in out.decode()
    assert "[launcher] worker:1 had to be killed (SIGKILL, pid " in out.decode()
    assert "[launcher] killed 6 processes that the tasks had started" in out.decode()
    assert not alive(nothing_left)  # at once, not some time later


def test_a_killed_launcher_takes_everything_with_it(tmp_path, nothing_left):  # noqa: F811
    with forest(tmp_path) as process:
        until_up(tmp_path, "tree stands")
        process.kill()
        process.wait(SECONDS)
        until(lambda: not alive(nothing_left), "all have ended")


def test_a_killed_launcher_is_noticed_though_a_fork_of_it_holds_the_socket(tmp_path, nothing_left):  # noqa: F811
    # As multiprocessing does: the copy keeps all descriptors open, so that the stream does not end.
    command, go = driver(TREE, tmp_path), tmp_path / "go"
    fork = (
        "import os, pathlib, threading, time\n"
        "def fork():\n"
        f"    while not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)\n"
        "    os.fork() or time.sleep(600)\n"
        "threading.Thread(target=fork).start()\n"
    )
    with started([*command[:2], fork + command[2], *command[3:]]) as process:
        until_up(tmp_path, "tree stands")
        go.touch()
        until(lambda: len(alive(nothing_left)) == TREES + 4, "the launcher has forked")
        process.kill()
        process.wait(SECONDS)
        until(lambda: len(alive(nothing_left)) == 1, "all but the copy have ended")


@pytest.mark.parametrize("seed", range(8))
def test_the_launcher_may_be_killed_at_any_moment_of_its_start(tmp_path, nothing_left, seed):  # noqa: F811
    with forest(tmp_path) as process:
        time.sleep(random.Random(seed).uniform(0.05, 0.4))
        process.kill()
        process.wait(SECONDS)
        until(lambda: not alive(nothing_left), "all have ended")


def test_a_killed_supervisor_takes_everything_with_it(tmp_path, nothing_left):  # noqa: F811
    with forest(tmp_path) as process:
        until_up(tmp_path, "tree stands")
        (supervisor,) = _supervisors(nothing_left)
        os.kill(supervisor, signal.SIGKILL)
        _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 138  # the tasks were lost with it
    assert err.decode() == "tfdist: launcher: its supervisor was killed, and worker:0, worker:1 with it\n"


STAYS = (
    "import signal, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "print('up', flush=True)\ntime.sleep(600)"
)
SAVES = (
    "import json, os, signal, sys, time\n"
    "index = json.loads(os.environ['TF_CONFIG'])['task']['index']\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN if index else lambda *_: sys.exit(138))\n"
    "print('up', flush=True)\ntime.sleep(600)"
)


@pytest.mark.parametrize(("code", "status"), [(STAYS, 128 + signal.SIGTERM), (SAVES, 138)])
@pytest.mark.parametrize("then", ["a second signal", "the supervisor is killed"])
def test_what_happens_while_the_tasks_end_keeps_the_status_of_the_signal(
    code,
    status,
    then,
    tmp_path,
    nothing_left,  # noqa: F811
):
    with started(driver(code, tmp_path, grace=600)) as process:
        until_up(tmp_path, "up")
        (supervisor,) = _supervisors(nothing_left)
        process.terminate()
        assert b"ending the tasks" in _line_with(process.stdout, b"SIGTERM")
        if status == 138:  # worker 0 has saved
            until(lambda: '"task_exited"' in (tmp_path / "events.jsonl").read_text(), "it has ended")
        if then == "a second signal":
            process.terminate()
        else:
            os.kill(supervisor, signal.SIGKILL)
        _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == status, err
    assert err.count(b"\n") == 1
    said = b"stopped by SIGTERM" if then == "a second signal" else b"its supervisor was killed, and worker:"
    assert said in err


def test_what_serves_the_chief_has_not_saved_for_it(tmp_path):
    code = (
        "import os, signal, sys, time\n"
        "if '\"type\": \"ps\"' in os.environ['TF_CONFIG']: signal.signal(signal.SIGTERM, lambda *_: sys.exit(138))\n"
        "print('up', flush=True)\ntime.sleep(600)"
    )
    with started(driver(code, tmp_path, cluster={"workers": 1, "ps": 1})) as process:
        for name in ("chief-0", "worker-0", "ps-0"):
            until(lambda name=name: holds(tmp_path / f"logs/{name}.log", "up\n"), f"{name} is up")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    exits = [event for event in read_events(tmp_path / "events.jsonl") if isinstance(event, TaskExited)]
    assert {event.task: event.status for event in exits} == {"chief:0": -15, "worker:0": -15, "ps:0": 138}


def test_the_kernel_ends_the_tasks_where_nobody_else_is_left_to(tmp_path, nothing_left):  # noqa: F811
    with started(driver(IDLE, tmp_path)) as process:
        until_up(tmp_path, "up")
        (supervisor,) = _supervisors(nothing_left)
        process.send_signal(signal.SIGSTOP)
        os.kill(supervisor, signal.SIGKILL)
        until(lambda: set(alive(nothing_left)) <= {process.pid, supervisor}, "the tasks have ended")


def test_a_supervisor_told_to_end_ends_all(tmp_path, nothing_left):  # noqa: F811
    with forest(tmp_path, grace=0.3) as process:
        until_up(tmp_path, "tree stands")
        (supervisor,) = _supervisors(nothing_left)
        os.kill(supervisor, signal.SIGTERM)
        _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 128 + signal.SIGTERM
    assert err.decode() == "tfdist: launcher: another process told its supervisor to end\n"


def test_a_second_signal_kills_at_once(tmp_path):
    with forest(tmp_path, grace=600) as process:
        until_up(tmp_path, "tree stands")
        process.send_signal(signal.SIGINT)
        assert b"ending the tasks" in _line_with(process.stdout, b"SIGINT")
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 128 + signal.SIGINT
    assert b"SIGINT: killing the tasks" in out


def test_tasks_that_save_their_work_on_sigterm_make_138(tmp_path):
    code = (
        "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(138))\n"
        "print('up', flush=True)\ntime.sleep(600)"
    )
    with started(driver(code, tmp_path)) as process:
        until_up(tmp_path, "up")
        process.terminate()
        process.communicate(timeout=SECONDS)
    assert process.returncode == 138


def test_a_signal_that_comes_as_soon_as_the_tasks_run_lets_them_save(tmp_path):
    slow = (
        "import time\nfrom tfdist.launcher.launch_monitor import LaunchMonitor\n"
        "begin = LaunchMonitor.begin\n"
        "LaunchMonitor.begin = lambda *words: (time.sleep(1), begin(*words))\n"
    )
    code = (
        "import os, signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(138))\n"
        "with open(f'/proc/{os.getppid()}/stat') as file: launcher = int(file.read().rpartition(')')[2].split()[1])\n"
        "os.kill(launcher, signal.SIGTERM)\ntime.sleep(600)"
    )
    command = driver(code, tmp_path, cluster={"workers": 1})
    with started([*command[:2], slow + command[2], *command[3:]]) as process:
        _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 138, err


def test_a_signal_while_the_launcher_tidies_up_changes_no_status(tmp_path):
    late = (
        "import contextlib, signal\nfrom tfdist.launcher import launch_tasks\nfolder = launch_tasks.temporary_folder\n"
        "@contextlib.contextmanager\ndef removed_late(name):\n    with folder(name) as made:\n        try: yield made\n"
        "        finally: signal.raise_signal(signal.SIGTERM)\nlaunch_tasks.temporary_folder = removed_late\n"
    )
    command = driver("import sys; sys.exit(138)", tmp_path)
    with started([*command[:2], late + command[2], *command[3:]]) as process:
        process.communicate(timeout=SECONDS)
    assert process.returncode == 138


@pytest.mark.parametrize(
    "names",
    ["SIGTERM", "SIGUSR1", "SIGUSR2", "SIGINT", "SIGHUP SIGHUP", "SIGTERM SIGHUP", "SIGHUP SIGTERM SIGHUP"],
)
def test_a_signal_to_every_process_of_the_job_at_once_leaves_the_tasks_their_time(
    names,
    tmp_path,
    nothing_left,  # noqa: F811
    monkeypatch,
):
    # As Slurm and systemd end a job.
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    code = (
        "import signal, sys, time\nfrom tfdist.coordination.stop_signals import ignore_stop_signals, stop_signals\n"
        "def save(*_):\n    time.sleep(0.5); print('saved', flush=True); ignore_stop_signals(); sys.exit(138)\n"
        "for number in stop_signals(): signal.signal(number, save)\nprint('up', flush=True)\ntime.sleep(600)"
    )
    with started(driver(code, tmp_path, restarts=3)) as process:
        until_up(tmp_path, "up")
        for name in names.split():
            for pid in alive(nothing_left):
                with contextlib.suppress(ProcessLookupError):  # it has ended since
                    os.kill(pid, signal.Signals[name])
        _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 138, err
    assert all(holds(tmp_path / f"logs/worker-{i}.log", "up\nsaved\n") for i in range(2))


def test_a_failure_before_the_signal_stays_the_root_cause(tmp_path):
    code = (
        "import os, signal, sys, time\nfrom pathlib import Path\n"
        f"deaf = Path({str(tmp_path / 'deaf')!r})\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if '\"index\": 1}' in os.environ['TF_CONFIG']:\n"
        "    while not deaf.exists(): time.sleep(0.01)\n"
        "    sys.exit(3)\n"
        "deaf.touch(); time.sleep(600)"
    )
    with started(driver(code, tmp_path, grace=600)) as process:
        _line_with(process.stdout, b"ending worker:0")
        process.send_signal(signal.SIGINT)
        _line_with(process.stdout, b"SIGINT: ending")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 1
    assert err.startswith(b"tfdist: worker:1: exited with 3 (pid ")


def test_a_task_killed_in_the_middle_is_named_and_ends_the_others(tmp_path, nothing_left):  # noqa: F811
    with forest(tmp_path, grace=0.3) as process:
        until_up(tmp_path, "tree stands")
        tree = [pid for pid in alive(nothing_left) if b'"index": 1}' in _environment(pid)]
        leader = next(pid for pid in tree if any(_parent(other) == pid for other in tree))
        os.kill(leader, signal.SIGKILL)
        _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 138
    assert err.decode() == (
        f"tfdist: worker:1: exited with -9 (SIGKILL, pid {leader}); log: {tmp_path}/logs/worker-1.log\n"
    )


def test_a_stopped_task_takes_sigterm_like_any_other(tmp_path, nothing_left):  # noqa: F811
    code = (
        "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(138))\n"
        "print('up', flush=True)\ntime.sleep(600)"
    )
    with started(driver(code, tmp_path, grace=600)) as process:
        until_up(tmp_path, "up")
        for pid in alive(nothing_left):
            if b"TF_CONFIG" in _environment(pid):
                os.kill(pid, signal.SIGSTOP)
        process.terminate()
        process.communicate(timeout=SECONDS)
    assert process.returncode == 138


def test_a_signal_that_was_ignored_stays_ignored(tmp_path):
    with started(driver(IDLE, tmp_path, prefix=["nohup"])) as process:
        until_up(tmp_path, "up")
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGHUP)
        time.sleep(0.5)
        assert process.poll() is None
        process.terminate()
        process.communicate(timeout=SECONDS)
    assert process.returncode == 128 + signal.SIGTERM


def test_what_a_task_leaves_behind_in_success_is_ended(tmp_path, nothing_left):  # noqa: F811
    code = "import os, time\nif os.fork() == 0:\n    os.setsid(); time.sleep(600)"
    _, shown = run(code, tmp_path)
    assert "killed 2 processes that the tasks had started" in shown
    assert not alive(nothing_left)


def test_children_of_the_caller_are_none_of_the_launchers_business(tmp_path):
    with subprocess.Popen(["sleep", "600"]) as bystander:
        try:
            with pytest.raises(LaunchError):
                run("import sys; sys.exit(1)", tmp_path)
            assert bystander.poll() is None
        finally:
            bystander.kill()


def test_adopted_processes_that_end_become_no_zombies(tmp_path, nothing_left):  # noqa: F811
    # Each task's daemons end while the task runs on; the supervisor is their parent then.
    code = "import os, time\nfor _ in range(20):\n    if os.fork() == 0:\n        os.fork() or time.sleep(0.2); os._exit(0)\n    os.wait()\nprint('up', flush=True); time.sleep(600)"
    with started(driver(code, tmp_path, grace=0.5)) as process:
        until_up(tmp_path, "up")
        (supervisor,) = _supervisors(nothing_left)
        until(
            lambda: len(_children(supervisor)) == 3,
            "the supervisor has its two tasks, its log writer and nothing else",
        )
        process.terminate()
        process.communicate(timeout=SECONDS)


def _supervisors(mark):
    """Find the supervisors; each has a log writer, a copy of itself, for a child."""
    copies = {pid for pid, command in alive(mark).items() if "supervisor.supervisor" in command}
    return {pid for pid in copies if _parent(pid) not in copies}


def _line_with(stream, text):
    for line in stream:
        if text in line:
            return line
    raise AssertionError(f"no line with {text!r}")


def _environment(pid):
    with open(f"/proc/{pid}/environ", "rb") as file:
        return file.read()


def _parent(pid):
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def _children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return file.read().split()
