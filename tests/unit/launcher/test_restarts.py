"""Lost tasks are started again, alone or with all the others, and no oftener than allowed."""

import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from launched import SECONDS, alive, driver, holds, nothing_left, run, started, until  # noqa: F401  # a fixture

from tfdist.cluster.config import ClusterConfig
from tfdist.errors import ConfigError
from tfdist.launcher import start_supervisor
from tfdist.launcher.launch_monitor import LaunchMonitor
from tfdist.launcher.outcome import LaunchError
from tfdist.launcher.run_events import LaunchEnded, TasksRestarting, read_events
from tfdist.launcher.supervisor.restart_policy import NEVER, Backoff, NewCheckpoints, RestartPolicy

pytestmark = pytest.mark.usefixtures("nothing_left")

# Each process knows which task it is, and how many it has been before.
LIVES = """
import json, os, signal, sys, time
from pathlib import Path
here = Path({here!r})
me = "{{type}}-{{index}}".format(**json.loads(os.environ["TF_CONFIG"])["task"])
mine = here / f"{{me}}.lives"
life = 1 + (mine.read_text().count("\\n") if mine.exists() else 0)
print(f"life {{life}}", flush=True)
with open(mine, "a") as file:  # last: who waits for it may end this process, which prints in two writes
    file.write(f"{{os.getpid()}}\\n")
def until(name, life):
    while not (here / f"{{name}}.lives").exists() or (here / f"{{name}}.lives").read_text().count("\\n") < life:
        time.sleep(0.01)
"""
DIE = "os.kill(os.getpid(), signal.SIGKILL)"
SAVE_ON_SIGTERM = """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(138))
(here / f"{me}.ready").touch()
def until_ready(*names):
    while not all((here / f"{name}.ready").exists() for name in names):
        time.sleep(0.01)
"""


def lives(folder):
    return {file.stem: file.read_text().count("\n") for file in folder.glob("*.lives")}


def live(folder, code, cluster, **options):
    """Launch code for tasks that may be lost; give the report, what was shown, and how often each lived."""
    try:
        report, shown = run(LIVES.format(here=str(folder)) + code, folder, cluster, **options)
    except LaunchError as error:
        return error, error.shown, lives(folder)
    return report, shown, lives(folder)


def parameter_servers():
    return ClusterConfig.local(workers=2, ps=1)


@pytest.mark.parametrize(
    ("ending", "said"), [(DIE, "-9 (SIGKILL, pid "), ("sys.exit(138)", "138 (pid ")], ids=["signal", "138"]
)
def test_a_lost_worker_of_its_own_pace_is_started_again_alone(tmp_path, ending, said):
    code = f"if me == 'worker-1' and life == 1: {ending}\nif me == 'chief-0': until('worker-1', 2)"
    report, shown, lived = live(tmp_path, code, parameter_servers(), restarts=3, alone=["worker"])
    assert lived == {"chief-0": 1, "worker-0": 1, "worker-1": 2, "ps-0": 1}
    (lost,) = (each for each in report.exits if each.again)
    assert str(lost.task) == "worker:1"
    assert not any(each.failed for each in report.exits)
    ending_said = f"[launcher] worker:1 exited with {said}"
    assert ending_said in shown
    assert "[launcher] starting worker:1 again, alone (restart 1 of 3)\n" in shown
    assert shown.splitlines()[-1].startswith(
        f"[launcher] lost, and started again: worker:1 exited with {said}"
    )
    # What the second life printed follows the first, in the log and on the screen.
    assert (tmp_path / "logs/worker-1.log").read_text() == "life 1\nlife 2\n"
    assert "[worker:1] life 2\n" in shown


def test_who_is_started_again_has_all_that_the_first_one_had(tmp_path):
    code = (
        "(here / f'{me}.{life}').write_text(json.dumps([dict(os.environ), os.readlink('/proc/self/ns/net'),"
        " os.getcwd(), sorted(os.sched_getaffinity(0)), os.getsid(0) == os.getpid(), sorted(os.listdir('/proc/self/fd'))]))\n"
        f"if me == 'worker-1' and life == 1: {DIE}\n"
        "if me == 'worker-1': (here / 'told.lives').write_text('1\\n')\nif me == 'chief-0': until('told', 1)"
    )
    live(tmp_path, code, parameter_servers(), restarts=1, alone=["worker"], threads=1, pin=True)
    assert (tmp_path / "worker-1.1").read_text() == (tmp_path / "worker-1.2").read_text()


def test_what_a_lost_task_leaves_is_ended_before_it_comes_again(tmp_path, nothing_left):  # noqa: F811
    code = (
        "if me == 'worker-1' and life == 1:\n"
        "    if os.fork() == 0:\n        os.setsid(); (here / 'left').write_text(str(os.getpid())); time.sleep(600)\n"
        "    while not ((here / 'left').exists() and (here / 'left').read_text()): time.sleep(0.01)\n"
        f"    {DIE}\n"
        "if me == 'worker-1':\n"
        "    environ = Path('/proc', (here / 'left').read_text(), 'environ')\n"
        "    print('left:', environ.exists() and environ.read_bytes(), flush=True)\n"
        "    (here / 'told.lives').write_text('1\\n')\n"
        "if me == 'chief-0': until('told', 1)"
    )
    live(tmp_path, code, parameter_servers(), restarts=1, alone=["worker"])
    said = (tmp_path / "logs/worker-1.log").read_text()
    assert said in ("life 1\nlife 2\nleft: False\n", "life 1\nlife 2\nleft: b''\n")  # b'' is of a zombie


def test_the_restarts_are_used_up_and_the_chief_saves_its_work(tmp_path):
    code = SAVE_ON_SIGTERM + (
        "if me == 'worker-1':\n"
        "    until_ready('chief-0', 'worker-0', 'ps-0')\n"
        f"    print('cause', flush=True); {DIE}\n"
        "time.sleep(600)"
    )
    error, shown, lived = live(tmp_path, code, parameter_servers(), restarts=2, alone=["worker"])
    assert lived == {"chief-0": 1, "worker-0": 1, "worker-1": 3, "ps-0": 1}
    assert error.exit_code == 138
    assert str(error).startswith("worker:1: exited with -9 (SIGKILL, pid ")
    assert "), after 2 restarts; log: " in str(error)
    assert [str(each.task) for each in error.exits if each.failed] == ["worker:1"]
    assert {each.code for each in error.exits if each.asked} == {138}
    assert error.tail[-1] == "cause"
    assert "starting worker:1 again, alone (restart 1 of 2)\n" in shown
    assert "starting worker:1 again, alone in 2 s (restart 2 of 2)\n" in shown


def test_what_would_fail_again_is_not_started_again(tmp_path):
    code = "if me == 'worker-1': sys.exit(3)\ntime.sleep(600)"
    error, _, lived = live(tmp_path, code, parameter_servers(), restarts=3, alone=["worker"])
    assert str(error).startswith("worker:1: exited with 3 (pid ")
    assert (error.exit_code, lived["worker-1"]) == (1, 1)


@pytest.mark.parametrize("who", ["ps-0", "chief-0", "worker-1"])
def test_a_task_that_others_need_is_started_again_with_all(tmp_path, who):
    code = (
        f"if me == {who!r} and life == 1:\n"
        "    for name in ('chief-0', 'worker-0', 'worker-1', 'ps-0'): until(name, 1)\n"
        f"    {DIE}\n"
        "if life == 1: time.sleep(600)"
    )
    report, shown, lived = live(tmp_path, code, parameter_servers(), restarts=1)
    assert set(lived.values()) == {2}
    assert [each.again for each in report.exits] == [True] * 4 + [False] * 4
    name = who.replace("-", ":")
    assert str(report.exits[0].task) == name
    assert "[launcher] starting all tasks again (restart 1 of 1)\n" in shown
    assert shown.splitlines()[-1].startswith(f"[launcher] lost, and started again: {name} exited with -9")


def test_the_second_time_all_wait_a_little(tmp_path):
    code = f"if me == 'worker-1' and life < 3: until('worker-0', life); {DIE}\nif life < 3: time.sleep(600)"
    _, shown, lived = live(tmp_path, code, ClusterConfig.local(workers=2), restarts=2)
    assert lived == {"worker-0": 3, "worker-1": 3}
    assert "starting all tasks again in 2 s (restart 2 of 2)\n" in shown


def test_an_evaluator_is_started_again_alone_also_after_the_chief(tmp_path):
    code = (
        "if me == 'evaluator-0':\n"
        "    os.kill(os.getpid(), signal.SIGKILL) if life == 1 else until('done', 1)\n"
        f"    if life == 2: {DIE}\n"
        "if me == 'worker-0':\n"
        "    until('evaluator-0', 2); (here / 'done.lives').write_text('1\\n')\n"
    )
    _, shown, lived = live(tmp_path, code, ClusterConfig.local(workers=2, evaluator=1), restarts=3)
    assert lived == {"worker-0": 1, "worker-1": 1, "evaluator-0": 3, "done": 1}
    assert shown.splitlines()[-1].count("evaluator:0 exited with -9") == 2


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc whether a process is there")
@pytest.mark.parametrize(
    ("counts", "lead", "alone", "restarts"),
    [({"ps": 1}, "chief-0", ["worker"], 3), ({}, "worker-0", [], 0), ({}, "worker-0", [], 3)],
)
def test_who_is_lost_after_the_chief_is_done_is_missed_by_nobody(tmp_path, counts, lead, alone, restarts):
    code = (
        "if me == 'worker-1':\n"
        f"    until('{lead}', 1)\n    lead = Path('/proc', (here / '{lead}.lives').read_text().strip())\n"
        "    while lead.exists(): time.sleep(0.01)\n"
        f"    time.sleep(0.3); {DIE}"
    )
    cluster = ClusterConfig.local(workers=2, **counts)
    report, shown, lived = live(tmp_path, code, cluster, restarts=restarts, alone=alone)
    assert set(lived.values()) == {1}
    assert "again" not in shown.replace(str(tmp_path), "")
    assert [each.code for each in report.exits if each.code] == [-9]
    [line] = [line for line in shown.splitlines() if "worker:1 exited" in line]
    assert line.endswith(f", after {lead.replace('-', ':')} was done")


def test_a_server_that_came_back_too_late_to_meet_the_chief_is_not_waited_for(tmp_path):
    code = f"if me == 'worker-1':\n    {DIE} if life == 1 else time.sleep(600)\nif me == 'chief-0': until('worker-1', 2)"
    report, shown, lived = live(tmp_path, code, parameter_servers(), restarts=3, alone=["worker"], grace=600)
    assert lived["worker-1"] == 2
    assert [each.code for each in report.exits if str(each.task) == "worker:1"] == [-9, -15]
    assert "did not end" not in shown


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc whether a process has ended")
def test_who_ends_in_the_same_instant_as_the_chief_gets_no_signal(tmp_path, monkeypatch):
    # The launcher would continue the supervisor too early.
    monkeypatch.setattr("tfdist.launcher.launch_monitor.is_stopped", lambda pid: False)
    code = (
        "def has_ended(pid): return Path('/proc', pid, 'stat').read_text().rpartition(')')[2].split()[0] == 'Z'\n"
        f"if me == 'worker-1':\n    {DIE} if life == 1 else until('stopped', 1)\n"
        "if me == 'chief-0':\n"
        "    supervisor = os.getppid()\n    until('worker-1', 2)\n"
        "    both = [(here / f'{name}.lives').read_text().split()[-1] for name in ('chief-0', 'worker-1')]\n"
        "    if os.fork() == 0:\n        os.setsid()\n"
        "        while not all(map(has_ended, both)): time.sleep(0.01)\n"
        "        os.kill(supervisor, signal.SIGCONT); os._exit(0)\n"
        "    os.kill(supervisor, signal.SIGSTOP)\n    (here / 'stopped.lives').write_text('1\\n')\n"
    )
    report, _, _ = live(tmp_path, code, parameter_servers(), restarts=1, alone=["worker"])
    assert [each.code for each in report.exits if str(each.task) == "worker:1"] == [-9, 0]


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc whether a process is there")
def test_a_silent_task_is_lost(tmp_path):
    code = (
        "if me == 'worker-1' and life == 1: os.kill(os.getpid(), signal.SIGSTOP)\n"
        "if me == 'chief-0':\n"
        "    from tfdist.launcher import report_silent\n"
        "    until('worker-1', 1); time.sleep(0.3)\n"
        "    silent = Path('/proc', (here / 'worker-1.lives').read_text().split()[0])\n"
        "    while silent.exists(): report_silent('worker:1', 0.2); time.sleep(0.05)\n"
        "    until('worker-1', 2)\n"
    )
    _, shown, lived = live(tmp_path, code, parameter_servers(), restarts=3, alone=["worker"])
    assert lived["worker-1"] >= 2
    assert lived["chief-0"] == 1
    said = [line for line in shown.splitlines() if line.startswith("[launcher] ")]
    first = said.index("[launcher] worker:1 silent for 0.2 s: killing it")
    assert said[first + 1].startswith("[launcher] worker:1 exited with -9")
    assert said[first + 2] == "[launcher] starting worker:1 again, alone (restart 1 of 3)"


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc whether a process is stopped")
def test_a_task_that_is_stopped_for_too_long_is_lost(tmp_path):
    code = (
        "if me == 'evaluator-0' and life == 1: os.kill(os.getpid(), signal.SIGSTOP)\n"
        "if me == 'worker-0': until('evaluator-0', 2)"
    )
    cluster = ClusterConfig.local(workers=1, evaluator=1)
    report, shown, lived = live(tmp_path, code, cluster, restarts=1, heartbeat_timeout=1.0)
    assert lived == {"worker-0": 1, "evaluator-0": 2}
    assert re.search(r"\[launcher\] evaluator:0 silent for [1-9][0-9.]* s: killing it\n", shown)
    assert not any(each.failed for each in report.exits)


@pytest.mark.parametrize("alone", [[], ["worker"]], ids=["all", "alone"])
def test_who_is_told_to_end_starts_nobody_again(tmp_path, alone):
    code = LIVES.format(here=str(tmp_path)) + f"if me == 'worker-1': {DIE}\ntime.sleep(600)"
    command = driver(code, tmp_path, cluster={"workers": 2, "ps": 1}, restarts=9, alone=alone)
    long_pause = (
        "import sys\nsys.path.append(sys.argv[1])\n"
        "from supervisor.restart_policy import Backoff\n"
        "pauses = iter([0.0])\n"
        "Backoff.pause_after = lambda *_: next(pauses, 600.0)\n"
    )
    command[2] = (
        "from tfdist.launcher import start_supervisor as it\n"
        f"it._SUPERVISOR_PROGRAM = {long_pause!r} + it._SUPERVISOR_PROGRAM\n"
    ) + command[2]
    with started(command) as process:
        shown = b""
        while b" in 600 s (restart 2 of 9)" not in shown:
            shown = process.stdout.readline()
            assert shown, process.stderr.read()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 128 + signal.SIGINT, err
    assert lives(tmp_path)["worker-1"] == 2


@pytest.fixture
def no_room(tmp_path, monkeypatch):
    """Return a file; while it is there, the supervisor cannot fork, as at the limit of processes."""
    full = tmp_path / "full"
    monkeypatch.setattr(
        start_supervisor,
        "_SUPERVISOR_PROGRAM",
        "import os\nfork = os.fork\ndef limited():\n"
        f"    if os.path.exists({str(full)!r}): raise BlockingIOError(11, 'no room')\n"
        "    return fork()\nos.fork = limited\n" + start_supervisor._SUPERVISOR_PROGRAM,
    )
    return full


DIES_WITHOUT_ROOM = SAVE_ON_SIGTERM + (
    "if me == 'worker-1' and life == 1:\n"
    "    until_ready('chief-0', 'worker-0', 'ps-0')\n"
    f"    (here / 'full').touch(); {DIE}\n"
    "if me != 'chief-0' or life == 1: until('worker-1', 2)\n"
)


@pytest.mark.parametrize("alone", [[], ["worker"]], ids=["all", "alone"])
def test_a_restart_without_room_for_a_process_is_tried_again(tmp_path, no_room, alone):
    def make_room():
        until(lambda: holds(tmp_path / "events.jsonl", '"tasks_restarting"', 2), "a start has failed")
        no_room.unlink()

    thread = threading.Thread(target=make_room)
    thread.start()
    report, shown, lived = live(tmp_path, DIES_WITHOUT_ROOM, parameter_servers(), restarts=5, alone=alone)
    thread.join()
    assert (lived["worker-1"], lived["chief-0"]) == (2, 1 if alone else 2)
    assert not any(each.failed for each in report.exits)
    assert " again: fork: no room\n" in shown
    assert " in 2 s (restart 2 of 5)\n" in shown


def test_a_restart_that_never_finds_room_lets_the_others_save(tmp_path, no_room):
    error, shown, lived = live(tmp_path, DIES_WITHOUT_ROOM, parameter_servers(), restarts=2, alone=["worker"])
    assert (str(error), error.exit_code) == ("worker:1: cannot be started again: fork: no room", 138)
    assert {each.code for each in error.exits if each.asked} == {138}
    assert "[launcher] starting worker:1 again, alone in 2 s (restart 2 of 2)\n" in shown
    assert lived["worker-1"] == 1


def test_a_program_that_is_gone_cannot_be_started_again(tmp_path):
    program = tmp_path / "program"
    program.write_text(f"#!{sys.executable}\nimport os\nos.remove(__file__)\nos.kill(os.getpid(), 9)\n")
    program.chmod(0o755)
    command = driver("", tmp_path, cluster={"workers": 1}, restarts=1)
    command[-1] = json.dumps({**json.loads(command[-1]), "command": [str(program)]})
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 1
    said = f"tfdist: worker:0: cannot start '{program}' again: No such file or directory\n"
    assert done.stderr == said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"restarts": -1}, "restarts: expected 0 or more, received -1"),
        ({"alone": ["wroker"]}, "alone: there is no 'wroker'. Did you mean 'worker'?"),
        ({"alone": ["worker"]}, "alone: worker:0 leads the others, which cannot continue without it. Leave worker out"),
    ],
)  # fmt: skip
def test_what_cannot_be_started_again_is_refused(tmp_path, options, message):
    with pytest.raises(ConfigError) as caught:
        run("", tmp_path, **options)
    assert str(caught.value) == message


def test_the_command_line_offers_the_same(tmp_path):
    code = LIVES.format(here=str(tmp_path)) + (
        f"if me == 'worker-1' and life == 1: {DIE}\nif me == 'chief-0': until('worker-1', 2)"
    )
    words = [
        sys.executable,
        "-m",
        "tfdist",
        "launch",
        "--workers",
        "2",
        "--ps",
        "1",
        "--run_dir",
        str(tmp_path),
    ]
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        [*words, "--restarts", "1", "--alone", "worker", "--", *command],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.returncode == 0, done.stderr
    assert "starting worker:1 again, alone (restart 1 of 1)" in done.stdout
    assert "\n[launcher] lost, and started again: worker:1 exited with -9" in done.stdout
    assert lives(tmp_path) == {"chief-0": 1, "worker-0": 1, "worker-1": 2, "ps-0": 1}


@pytest.mark.parametrize(
    ("lifetimes", "pauses"),
    [
        ([1, 1, 1, 1], [0, 2, 4, 8]),
        ([3600, 3600, 3600], [0, 0, 0]),
        ([1, 1, 3600, 1, 1], [0, 2, 0, 0, 2]),
        ([1] * 1100, [0, 2, 4, 8, 16, 32] + [60] * 1094),
    ],
)
def test_what_is_soon_lost_again_waits_twice_as_long(lifetimes, pauses):
    backoff = Backoff()
    assert [backoff.pause_after(seconds) for seconds in lifetimes] == pauses


@pytest.fixture
def policy():
    """Return a policy for a chief, a server and an evaluator, which have started, and note whom it ends."""
    ended = set()
    policy = RestartPolicy(
        lead="chief:0",
        servers=["worker:0"],
        evaluators=["evaluator:0"],
        alone=["worker:0", "evaluator:0"],
        restarts=3,
        grace=30.0,
        linger=600.0,
        lost=138,
        terminate=ended.update,
    )
    for name in ("chief:0", "worker:0", "evaluator:0"):
        policy.note_start(name)
    policy.ended = ended
    return policy


def test_after_the_chief_only_those_that_do_not_serve_it_restart(policy):
    for name in ("worker:0", "evaluator:0"):
        assert policy.react(name, -9).alone
    assert sorted(policy.take_due()) == ["evaluator:0", "worker:0"]
    assert policy.may_restart("worker:0")
    policy.react("chief:0", 0)
    assert policy.ended == {"worker:0"}
    assert not policy.may_restart("worker:0")
    assert policy.may_restart("evaluator:0")
    assert policy.react("worker:0", -9) == (True, False, False, None, 0)


def test_a_start_that_fails_costs_a_restart_of_all(policy):
    pauses = []
    for _ in range(4):
        policy.begin_round()
        pauses.append(policy.lose_start())
    assert pauses == [0.0, 2.0, 4.0, None]
    assert policy.next_round == NEVER


def test_no_task_restarts_once_all_must_end(policy):
    policy.react("worker:0", -9)
    assert policy.react("chief:0", 138) == (False, True, False, 0.0, 2)
    assert not policy.may_restart("worker:0")
    assert policy.react("evaluator:0", 1).again  # with all others
    policy.stop()
    assert policy.next_round == NEVER
    assert policy.begin_ending()
    assert not policy.begin_ending()
    assert not policy.restart_at
    assert policy.react("evaluator:0", 1) == (True, False, False, None, 0)


SAVES_AND_DIES = (
    "from tfdist.launcher.record_events import record\n"
    "from tfdist.launcher.run_events import CheckpointSaved\n"
    "if me == 'worker-0':\n"
    "    record(CheckpointSaved(step={step}, seconds=0.1)); until('worker-1', life)\n"
    "    while not (here / f'noted-{{life}}').exists(): time.sleep(0.01)\n"
    "    if life < 3: os.kill(os.getpid(), signal.SIGKILL)\n"
    "elif life < 3: time.sleep(600)\n"
)


@pytest.fixture
def noted(tmp_path, monkeypatch):
    """Write a file `noted-N` once the launcher has passed on to the supervisor what the Nth checkpoint means."""
    numbers, read_reports = itertools.count(1), LaunchMonitor._read_reports

    def read_and_note(monitor, data):
        read_reports(monitor, data)
        for _ in range(data.count(b'"checkpoint_saved"')):
            (tmp_path / f"noted-{next(numbers)}").touch()

    monkeypatch.setattr(LaunchMonitor, "_read_reports", read_and_note)


@pytest.mark.usefixtures("noted")
def test_a_new_checkpoint_renews_the_restarts(tmp_path):
    code = SAVES_AND_DIES.format(step="10 * life")
    _, shown, lived = live(tmp_path, code, ClusterConfig.local(workers=2), restarts=1)
    assert lived == {"worker-0": 3, "worker-1": 3}
    assert "starting all tasks again (restart 1 of 1)\n" in shown
    assert (
        "starting all tasks again in 2 s (restart 1 of 1)\n" in shown
    )  # the backoff is that of a crash loop
    events = read_events(tmp_path / "events.jsonl")
    assert [event.restart for event in events if isinstance(event, TasksRestarting)] == [1, 1]
    assert [event.restarts for event in events if isinstance(event, LaunchEnded)] == [2]


@pytest.mark.usefixtures("noted")
def test_the_checkpoint_of_a_step_that_was_saved_before_renews_nothing(tmp_path):
    error, _, lived = live(
        tmp_path, SAVES_AND_DIES.format(step=10), ClusterConfig.local(workers=2), restarts=1
    )
    assert lived == {"worker-0": 2, "worker-1": 2}
    assert error.exit_code == 138
    assert "), after 1 restart; log: " in str(error)


@pytest.mark.usefixtures("noted")
def test_a_new_checkpoint_starts_nobody_again_where_no_restart_is_allowed(tmp_path):
    error, _, lived = live(
        tmp_path, SAVES_AND_DIES.format(step="10 * life"), ClusterConfig.local(workers=2), restarts=0
    )
    assert lived == {"worker-0": 1, "worker-1": 1}
    assert error.exit_code == 138


@pytest.mark.parametrize(
    ("lives_of_chief", "new"),
    [
        ([[10, 20]], [True, True]),
        ([[10, 20], [10, 20, 30]], [True, True, False, False, True]),  # the checkpoints were lost
        ([[10, 20], [20], [20]], [True, True, False, False]),
        ([[10, 20, 5, 10], [15]], [True, True, True, True, True]),  # another training, of the same script
        ([[0], [0], [1]], [False, False, True]),
    ],
)
def test_a_checkpoint_is_new_if_no_life_of_the_chief_had_come_so_far(lives_of_chief, new):
    checkpoints, found = NewCheckpoints(), []
    for steps in lives_of_chief:
        checkpoints.begin_life()
        found += [checkpoints.is_new(step) for step in steps]
    assert found == new


def supervisor_of(launcher):
    """Return the supervisor of a launcher in a process of its own."""
    [pid] = [int(pid) for pid in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()]
    return pid


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_all_is_ended_while_the_supervisor_is_stopped(tmp_path, number):
    code = LIVES.format(here=str(tmp_path)) + "time.sleep(600)"
    with started(driver(code, tmp_path / "run", grace=2.0)) as launcher:
        until(lambda: sum(lives(tmp_path).values()) == 2, "the tasks run")
        os.kill(supervisor_of(launcher.pid), signal.SIGSTOP)
        os.kill(launcher.pid, number)
        assert launcher.wait(SECONDS) == (128 + number if number == signal.SIGTERM else -number)


def test_a_supervisor_that_is_stopped_is_continued(tmp_path):
    code = LIVES.format(here=str(tmp_path)) + "until('go', 1)"
    with started(driver(code, tmp_path / "run")) as launcher:
        until(lambda: sum(lives(tmp_path).values()) == 2, "the tasks run")
        os.kill(supervisor_of(launcher.pid), signal.SIGSTOP)
        (tmp_path / "go.lives").write_text("\n")
        shown = launcher.communicate(timeout=SECONDS)[0].decode()
    assert launcher.returncode == 0
    assert "the supervisor of the tasks was stopped (SIGSTOP): continuing it" in shown


def test_a_supervisor_that_is_stopped_again_and_again_does_not_keep_the_tasks_alive(tmp_path, monkeypatch):
    monkeypatch.setattr("tfdist.launcher.launch_monitor._SECONDS_AFTER_GRACE", 1.0)
    monkeypatch.setattr("tfdist.launcher.launch_monitor.is_stopped", lambda pid: False)
    code = LIVES.format(here=str(tmp_path)) + "time.sleep(600)"
    with pytest.raises(LaunchError, match="its supervisor was killed") as caught, interrupted(tmp_path):
        run(code, tmp_path, grace=1.0)
    assert "the supervisor has not ended the tasks within 2 s: killing it" in caught.value.shown


@contextlib.contextmanager
def interrupted(folder):
    """Stop the supervisor that this process starts, and then send this process SIGTERM."""

    def interrupt():
        until(lambda: sum(lives(folder).values()) == 2, "the tasks run")
        task = int((folder / "worker-0.lives").read_text())
        os.kill(int(Path(f"/proc/{task}/stat").read_text().rpartition(")")[2].split()[1]), signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        yield
    finally:
        thread.join(SECONDS)
