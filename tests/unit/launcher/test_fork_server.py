"""Tasks that are forked from one process that has loaded for all: they are like tasks started one by one."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest
from launched import SECONDS, driver, holds, nothing_left, run, started, until  # noqa: F401  # a fixture

from tfdist.cluster.config import ClusterConfig
from tfdist.launcher import start_supervisor
from tfdist.launcher.outcome import LaunchError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the tasks are forked on Linux alone")

# What takes long to load says so in a file, once for each process that loads it.
LOADED = "import os\nwith open(os.environ['HERE'] + '/loaded', 'a') as file:\n    file.write(f'{os.getpid()}\\n')\n"
BEGIN = (
    "import json, os, random, signal, sys, time\nfrom pathlib import Path\nsys.path.append(os.environ['HERE'])\n"
    "from tfdist.launcher import fork_tasks\nfork_tasks('heavy')\nimport heavy\n"
    "here = Path(os.environ['HERE'])\ntask = json.loads(os.environ['TF_CONFIG'])['task']\n"
    "me = f\"{task['type']}-{task['index']}\"\n"
    "with open(here / f'{me}.lives', 'a') as file:\n    file.write('life\\n')\n"
    "life = (here / f'{me}.lives').read_text().count('life')\n"
    "def until_worker_0_lives():\n"
    "    other = here / 'worker-0.lives'\n"
    "    while not (other.exists() and other.read_text()): time.sleep(0.01)\n"
)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.setenv("HERE", str(tmp_path))
    (tmp_path / "heavy.py").write_text(LOADED)
    return tmp_path


def loaded(here: Path) -> list[str]:
    return (here / "loaded").read_text().split()


def test_what_is_loaded_is_loaded_once(here, nothing_left):  # noqa: F811
    report, _ = run(BEGIN, here, ClusterConfig.local(workers=3), loads_once=True)
    assert len(loaded(here)) == 1
    assert loaded(here)[0] not in {str(each.pid) for each in report.exits}
    assert len(report.exits) == 3


def test_a_forked_task_is_like_one_that_was_started(here, nothing_left):  # noqa: F811
    code = BEGIN + (
        "signals = [line for line in open('/proc/self/status') if line.startswith(('SigIgn', 'SigBlk'))]\n"
        "facts = dict(variables=dict(os.environ), signals=signals,\n"
        "  handlers=[str(signal.getsignal(each)) for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)],\n"
        "  fds=len(os.listdir('/proc/self/fd')), nothing=sys.stdin.read(), leads=os.getsid(0) == os.getpid(),\n"
        "  cores=sorted(os.sched_getaffinity(0)), folder=os.getcwd(), words=sys.argv,\n"
        "  of_supervisor=b'supervisor' in open(f'/proc/{os.getppid()}/cmdline', 'rb').read())\n"
        "(here / f'{me}.{os.environ[\"TFDIST_NOTE\"]}').write_text(json.dumps(facts, sort_keys=True))\n"
    )
    pin = len(os.sched_getaffinity(0)) > 1
    cluster = ClusterConfig.local(workers=2)
    for note in ("forked", "started"):
        run(
            code,
            here,
            cluster,
            loads_once=note == "forked",
            pin=pin,
            env={"TFDIST_NOTE": note, "Ü": "\udce9"},
        )
    for me in ("worker-0", "worker-1"):
        forked, alone = (json.loads((here / f"{me}.{note}").read_text()) for note in ("forked", "started"))
        of_launch = (
            "TFDIST_LAUNCH",
            "TFDIST_NOTE",
            "TFDIST_PROGRESS",
            "TFDIST_SECRET",
            "TFDIST_START",
            "TFDIST_TASK",
            "TMPDIR",
        )
        for facts in (forked, alone):
            for name in of_launch:
                facts["variables"].pop(name, None)
        assert forked == alone


def test_a_lost_task_comes_from_there_again(here, nothing_left):  # noqa: F811
    code = BEGIN + (
        "if me == 'worker-1' and life == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
        "other = here / 'worker-1.lives'\n"
        "while me == 'chief-0' and not (other.exists() and other.read_text().count('life') == 2): time.sleep(0.01)\n"
    )
    report, _ = run(
        code, here, ClusterConfig.local(workers=2, ps=1), loads_once=True, restarts=1, alone=["worker"]
    )
    assert len(loaded(here)) == 1
    assert [str(each.task) for each in report.exits if each.again] == ["worker:1"]


def test_what_a_lost_forked_task_leaves_is_ended_before_it_comes_again(here, nothing_left):  # noqa: F811
    code = BEGIN + (
        "if me == 'worker-1' and life == 1:\n"
        "    if (left := os.fork()) == 0: time.sleep(600)\n"
        "    (here / 'left').write_text(str(left))\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "if me == 'worker-1':\n"
        "    try: left = Path('/proc', (here / 'left').read_text(), 'environ').read_bytes()\n"
        "    except OSError: left = b''\n"  # as of a zombie
        "    (here / 'noted').write_text(str(not left))\n"
        "    (here / 'noted').rename(here / 'ended')\n"  # written whole: the end of the chief ends this task
        "while me == 'chief-0' and not (here / 'ended').exists(): time.sleep(0.01)\n"
    )
    run(code, here, ClusterConfig.local(workers=2, ps=1), loads_once=True, restarts=1, alone=["worker"])
    assert (here / "ended").read_text() == "True"


def test_each_task_has_random_numbers_of_its_own(here, nothing_left):  # noqa: F811
    (here / "heavy.py").write_text("import random\nimport numpy\nnumpy.random.rand()\nrandom.random()\n")
    code = (
        BEGIN
        + "import numpy\n(here / f'{me}.drawn').write_text(f'{random.random()} {numpy.random.rand()}')\n"
    )
    run(code, here, ClusterConfig.local(workers=2), loads_once=True)
    drawn = [(here / f"worker-{index}.drawn").read_text().split() for index in (0, 1)]
    assert len({*drawn[0], *drawn[1]}) == 4


def test_what_cannot_be_loaded_is_told_by_the_tasks(here, nothing_left):  # noqa: F811
    (here / "heavy.py").write_text("import no_such_module")
    with pytest.raises(LaunchError, match=r"worker:\d: exited with 1 ") as caught:
        run(BEGIN, here, loads_once=True)
    assert caught.value.tail[-1] == "ModuleNotFoundError: No module named 'no_such_module'"


def test_where_it_is_killed_the_tasks_are_started_one_by_one(here, nothing_left):  # noqa: F811
    code = BEGIN + (
        "if me == 'worker-1' and life == 1:\n    until_worker_0_lives()\n"
        "    os.kill(int((here / 'loaded').read_text().split()[0]), signal.SIGKILL)\n"
        "    time.sleep(0.2)\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        "while me == 'worker-0' and life == 1: time.sleep(1)\n"
    )
    report, shown = run(code, here, loads_once=True, restarts=1)
    assert [each.code for each in report.exits[-2:]] == [0, 0]
    assert len(loaded(here)) == 3
    assert "that the tasks had started" not in shown


def test_the_number_of_a_process_that_has_ended_gets_no_signal(here, nothing_left, monkeypatch):  # noqa: F811
    # It may be that of a stranger by then.
    monkeypatch.setattr(
        start_supervisor,
        "_SUPERVISOR_PROGRAM",
        "import os\nkill = os.kill\ndef watched(pid, number):\n"
        "    try:\n        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)\n"
        "    except ChildProcessError:\n"
        f"        open({str(here / 'strangers')!r}, 'a').write(f'{{pid}} ')\n"
        "    else:\n        kill(pid, number)\n"
        "os.kill = watched\n" + start_supervisor._SUPERVISOR_PROGRAM,
    )
    # Without restarts, it ends as soon as the tasks have started.
    run(BEGIN + "time.sleep(0.5)\n", here, loads_once=True)
    assert not (here / "strangers").exists()


def test_a_command_that_takes_no_part_runs_all_the_same(here, nothing_left):  # noqa: F811
    # Such a fork server ends without a word, and has done once what each task does.
    code = "import os\nopen(os.environ['HERE'] + '/loaded', 'a').write(f'{os.getpid()}\\n')"
    report, _ = run(code, here, loads_once=True)
    assert [each.code for each in report.exits] == [0, 0]
    assert len(loaded(here)) == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_all_is_ended_while_it_loads(here, nothing_left, number):  # noqa: F811
    (here / "heavy.py").write_text(LOADED + "import time\ntime.sleep(600)\n")
    with started(driver(BEGIN, here / "run", loads_once=True)) as launcher:
        until(lambda: holds(here / "loaded", "\n"), "it loads")
        os.kill(launcher.pid, number)
        assert launcher.wait(SECONDS) == (128 + number if number == signal.SIGTERM else -number)
    assert not (here / "worker-0.lives").exists()


def test_a_signal_to_every_process_of_a_job_is_no_end_of_it(here, nothing_left):  # noqa: F811
    (here / "heavy.py").write_text(LOADED)
    code = BEGIN + (
        "if life == 1: os.kill(int((here / 'loaded').read_text()), signal.SIGTERM)\n"
        "if me == 'worker-1' and life == 1: until_worker_0_lives(); os.kill(os.getpid(), signal.SIGKILL)\n"
        "while me == 'worker-0' and life == 1: time.sleep(1)\n"
    )
    run(code, here, loads_once=True, restarts=1)
    assert len(loaded(here)) == 1


def test_where_it_is_stopped_the_tasks_are_started_one_by_one(here, nothing_left):  # noqa: F811
    (here / "heavy.py").write_text(
        LOADED
        + "import signal\nif 'TFDIST_FORK_SERVER' in os.environ:\n    os.kill(os.getpid(), signal.SIGSTOP)\n"
    )
    report, shown = run(BEGIN, here, loads_once=True)
    assert [each.code for each in report.exits] == [0, 0]
    assert len(loaded(here)) == 3
    assert "loads for all tasks was stopped for 5 s: starting the tasks one by one" in shown


def test_where_it_is_stopped_later_lost_tasks_are_started_without_it(here, nothing_left):  # noqa: F811
    code = BEGIN + (
        "if me == 'worker-1' and life == 1:\n    until_worker_0_lives()\n"
        "    server = (here / 'loaded').read_text().split()[0]\n"
        "    os.kill(int(server), signal.SIGSTOP)\n"
        "    while Path('/proc', server, 'stat').read_text().rpartition(') ')[2][0] != 'T': time.sleep(0.01)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "while me == 'worker-0' and life == 1: time.sleep(1)\n"
    )
    report, _ = run(code, here, loads_once=True, restarts=1)
    assert [each.code for each in report.exits[-2:]] == [0, 0]
    assert len(loaded(here)) == 3
